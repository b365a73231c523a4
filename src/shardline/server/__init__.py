"""An embedded Kinesis: a pure model of the service, and thin shells that serve it. It never imports ``core``."""
