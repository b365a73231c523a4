"""Does the server answer requests with invalid HTTP as AWS did: status, content type and body?

``http_recordings.py`` has the requests and the answers. The server checks signatures, as AWS does.
"""

import base64
import http.client
import json
import re
from contextlib import closing
from urllib.parse import urlsplit

import cbor2
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.interop import http_recordings as table

from shardline.testing import LocalKinesis

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesis(verify_signatures=True) as server:
        yield server


def signed(kinesis, exchange):
    keys = kinesis.boto3_arguments
    request = AWSRequest(exchange.method, kinesis.endpoint_url + exchange.path, exchange.headers, exchange.body)
    credentials = Credentials(keys["aws_access_key_id"], keys["aws_secret_access_key"])
    SigV4Auth(credentials, "kinesis", keys["region_name"]).add_auth(request)
    return dict(request.headers)


@pytest.mark.parametrize("exchange", table.EXCHANGES, ids=lambda exchange: exchange.name)
def test_the_server_answers_as_aws_answered(kinesis, exchange):
    headers = signed(kinesis, exchange) if exchange.is_signed else exchange.headers
    with closing(http.client.HTTPConnection(urlsplit(kinesis.endpoint_url).netloc, timeout=30)) as connection:
        connection.request(exchange.method, exchange.path, exchange.body, headers)
        response = connection.getresponse()
        body = response.read()
    kind = response.headers["content-type"]
    answer = {table.CBOR: cbor2.loads, table.XML: bytes.decode}.get(kind, json.loads)(body)
    assert (response.status, kind, answer) == (exchange.status, exchange.content_type, exchange.answer)
    assert re.fullmatch(UUID, response.headers["x-amzn-requestid"])
    assert 64 <= len(base64.b64decode(response.headers["x-amz-id-2"], validate=True)) <= 80
    assert response.headers["content-length"] == str(len(body))
