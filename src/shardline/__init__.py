"""Amazon Kinesis Data Streams for Python."""

__version__ = "0.1.0"
