"""Error responses of any origin."""

import json
import time

import cbor2
import pytest

from shardline.codec.envelope import BodyError, ErrorResponse, bare_code, read_error, request_id_of

NAME = "ResourceNotFoundException"


def answer(body, status=400, **headers):
    return read_error(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


# ---- the code


@pytest.mark.parametrize(
    "declared",
    [
        NAME,
        f"com.amazonaws.kinesis.v20131202#{NAME}",
        f"{NAME}:http://internal.amazon.com/coral/com.amazon.kinesis/",
        f"com.amazonaws.kinesis#{NAME}:http://internal.amazon.com/x#y/",
        f"aws.protocoltests#a#{NAME}",
        f"  {NAME}  ",
    ],
)
def test_the_code_is_bare(declared):
    assert bare_code(declared) == NAME
    assert answer(json.dumps({"__type": declared}).encode()).code == NAME
    assert answer(b"", x_amzn_errortype=declared).code == NAME


def test_the_header_wins_over_the_body():
    body = b'{"__type":"ValidationException","message":"words"}'
    assert answer(body, x_amzn_errortype=f"{NAME}:http://x/") == ErrorResponse(NAME, "words", None, None, is_typed=True)


@pytest.mark.parametrize("member", ["__type", "code", "Code"])
def test_the_code_stands_under_several_names(member):
    assert answer(json.dumps({member: NAME}).encode()).code == NAME


def test_the_first_of_these_names_wins():
    assert answer(b'{"Code":"C","code":"B","__type":"A"}').code == "A"
    assert answer(b'{"Code":"C","code":"B"}').code == "B"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "BadRequest"),
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "NotFound"),
        (407, "ProxyAuthenticationRequired"),
        (408, "RequestTimeout"),
        (413, "RequestEntityTooLarge"),
        (429, "TooManyRequests"),
        (500, "InternalServerError"),
        (502, "BadGateway"),
        (503, "ServiceUnavailable"),
        (504, "GatewayTimeout"),
        (418, "Http418"),
        (302, "Http302"),
    ],
)
@pytest.mark.parametrize("body", [b"", b"{}", b'{"__type":""}', b'{"__type":7}', b"<html></html>", b"\xa0"])
def test_without_a_code_the_status_gives_one(status, code, body):
    assert answer(body, status).code == code
    assert answer(body, status).message == f"HTTP status {status} with no explanation"


@pytest.mark.parametrize("declared", [":http://x/", "#", "  ", "com.amazonaws#"])
def test_a_declared_code_without_a_name_counts_as_none(declared):
    assert answer(b"", 503, x_amzn_errortype=declared).code == "ServiceUnavailable"


def test_a_huge_code_is_cut():
    assert len(answer(json.dumps({"__type": "X" * 100_000}).encode()).code) == 1_000


# ---- the message


@pytest.mark.parametrize("member", ["message", "Message", "errorMessage"])
def test_the_message_stands_under_several_names(member):
    assert answer(json.dumps({"__type": NAME, member: "Stream ö not found"}).encode()).message == "Stream ö not found"


def test_the_first_of_these_names_that_holds_text_wins():
    assert answer(b'{"message":null,"Message":"B","errorMessage":"C"}').message == "B"
    assert answer(b'{"message":"A","Message":"B"}').message == "A"


@pytest.mark.parametrize("value", [None, 5, ["x"], {"a": 1}, True, ""])
def test_a_message_that_is_no_text_counts_as_none(value):
    body = json.dumps({"__type": NAME, "message": value}).encode()
    assert answer(body, 404) == ErrorResponse(NAME, "HTTP status 404 with no explanation", None, None, is_typed=True)


@pytest.mark.parametrize(
    ("body", "headers", "is_typed"),
    [
        (b'{"__type":"A"}', {}, True),
        (b"<html></html>", {"x_amzn_errortype": "A:http://x/"}, True),
        (b"{}", {"x_amzn_errortype": " : "}, False),
        (b'{"__type":"com.amazonaws#"}', {}, False),
        (b'{"__type":5}', {}, False),
        (b'{"code":"ValidationError"}', {}, False),
        (b'{"Code":"A","message":"of another API"}', {}, False),
        (b"<html>Forbidden</html>", {}, False),
        (b"", {}, False),
    ],
)
def test_only_a_header_or_a_type_in_the_body_names_the_type_of_an_aws_error(body, headers, is_typed):
    assert answer(body, 403, **headers).is_typed is is_typed


def test_leading_white_space_does_not_hide_json():
    assert answer(b'\r\n  {"__type":"A","message":"words"}').code == "A"


def test_a_cbor_answer_is_read():
    body = cbor2.dumps({"__type": f"com.amazonaws#{NAME}", "message": "Stream ö", "extra": [1, {"a": b"x"}]})
    assert answer(body) == ErrorResponse(NAME, "Stream ö", None, None, is_typed=True)


def test_a_cbor_answer_of_indefinite_length_is_read():
    body = b"\xbf" + cbor2.dumps("__type") + cbor2.dumps(NAME) + b"\xff"
    assert answer(body).code == NAME


def test_a_json_answer_to_a_cbor_request_is_read():
    # The content of the body decides, whatever the Content-Type says.
    body = b'{"__type":"InvalidSignatureException","message":"Signature expired"}'
    told = answer(body, 403, content_type="application/x-amz-cbor-1.1")
    assert (told.code, told.message) == ("InvalidSignatureException", "Signature expired")


HTML = b"""<!DOCTYPE html><html><head><title>502 Bad Gateway</title>
<style>body { color: red }</style><script type="x">if (a < b) { alert(1) }</script></head>
<body><center><h1>502   Bad Gateway</h1></center><hr>nginx</body></html>"""


def test_the_words_of_an_html_page_are_the_message():
    assert answer(HTML, 502) == ErrorResponse(
        "BadGateway", "502 Bad Gateway 502 Bad Gateway nginx", None, None, is_typed=False
    )


def test_a_text_is_the_message():
    assert answer(b"upstream connect error\nor disconnect", 503).message == "upstream connect error or disconnect"
    assert answer("größer".encode(), 503).message == "größer"


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe\x00\x01",
        bytes(range(256)),
        b"\x00\x00\x00",
        b"\x1f\x8b\x08\x00",  # gzip
        b"PK\x03\x04",
        b"\x1b[31mred\x1b[0m",  # a terminal would execute it
        b"\xa5garbage",  # begins as a CBOR map
        b"\xbf",
        b"\xa1\x00\x00",  # a CBOR map whose key is a number
        b"\x82\x01\x02",
    ],
)
def test_bytes_that_are_no_text_give_no_message(body):
    assert answer(body, 500) == ErrorResponse(
        "InternalServerError", "HTTP status 500 with no explanation", None, None, is_typed=False
    )


@pytest.mark.parametrize("body", [b"[1,2]", b"null", b'"text"', b'{"__type":', b"{'__type': 'A'}", b"{]"])
def test_json_that_is_no_object_is_a_text(body):
    assert answer(body, 500) == ErrorResponse("InternalServerError", body.decode(), None, None, is_typed=False)


def test_json_that_is_no_utf8_gives_no_message():
    assert answer(b'{"message":"\xff"}', 500).message == "HTTP status 500 with no explanation"


@pytest.mark.parametrize(
    "opening", [b"{", b'{"a":', b'{"a":[', b"\xa1\x61a", b"\xbf\x61a", b"\xa1\x61a\x81", b"[", b"<"]
)
def test_a_nested_bomb_is_survived_at_once(opening):
    before = time.process_time()
    told = answer(opening * 200_000, 500)
    assert time.process_time() - before < 0.2
    assert told.code == "InternalServerError"
    assert len(told.message) <= 1_000


@pytest.mark.parametrize("piece", [b"<", b"<style", b"<script ", b"<!-- ", b"</style", b"<style></script", b"<a "])
def test_unclosed_tags_cost_linear_time(piece):
    before = time.process_time()
    told = answer(piece * 200_000, 500)
    assert time.process_time() - before < 0.1  # 0.4 s and more if every "<" searched to the end
    assert len(told.message) <= 1_000


def test_a_long_message_is_cut():
    assert answer(json.dumps({"message": "m" * 5_000}).encode()).message == "m" * 1_000
    assert answer(b"t" * 5_000).message == "t" * 1_000
    assert answer(b"<p>" + b"w " * 5_000 + b"</p>").message == "w " * 500


@pytest.mark.parametrize(
    "body",
    [b"x" * 16_000_000, b" " * 16_000_000, b"<p>" * 5_000_000, b'{"message":"' + b"x" * 16_000_000 + b'"}'],
    ids=range(4),
)
def test_a_huge_body_is_cut_and_costs_little(body):
    before = time.process_time()
    told = answer(body, 500)
    assert time.process_time() - before < 1.0
    assert len(told.message) <= 1_000


def test_only_the_first_16_000_bytes_are_looked_at():
    assert answer(b"<p>" * 5_000 + b"words", 500).message == "words"
    assert answer(b"<p>" * 6_000 + b"words", 500).message == "<"  # a tag cut in two


def test_a_character_cut_in_two_at_the_end_of_what_is_looked_at_does_no_harm():
    assert answer("ä".encode() * 8_000 + b"x").message == "ä" * 1_000
    assert answer(b"x" + "ä".encode() * 8_000).message == "x" + "ä" * 999


# ---- the headers


def test_the_request_id_has_two_names():
    assert request_id_of({"x-amzn-requestid": "a"}) == "a"
    assert request_id_of({"x-amz-request-id": "b"}) == "b"
    assert request_id_of({"x-amzn-requestid": "a", "x-amz-request-id": "b"}) == "a"
    assert request_id_of({}) is None
    assert answer(b"", x_amzn_requestid="a").request_id == "a"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1", 1.0),
        (" 120 ", 120.0),
        ("86400", 86_400.0),
        ("86401", 86_400.0),
        ("9" * 5_000, 86_400.0),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1.5", None),
        ("1e3", None),
        ("\N{SUPERSCRIPT TWO}", None),
        ("\N{ARABIC-INDIC DIGIT TWO}", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None),
        ("soon", None),
    ],
    ids=range(15),
)
def test_retry_after_is_whole_seconds_up_to_a_day(text, seconds):
    assert answer(b"", retry_after=text).retry_after == seconds


def test_without_retry_after_there_is_no_delay():
    assert answer(b"").retry_after is None


def test_a_body_error_is_a_value_error():
    assert issubclass(BodyError, ValueError)


# ---- secrets that a service repeats

TOKEN = "FwoGZXIvYXdzEIr/+&SESSION=="


@pytest.mark.parametrize(
    "spelt",
    [
        TOKEN,
        TOKEN.lower(),
        "FwoGZXIvYXdzEIr/%2B%26SESSION%3D%3D",
        "FwoGZXIvYXdzEIr%2f%2b%26SESSION%3d%3d",
        "FwoGZXIvYXdzEIr%252F%252B%2526SESSION%253D%253D",
        "FwoGZXIvYXdzEIr/+&amp;SESSION==",
        "FwoGZXIvYXdzEIr&#47;&#43;&#38;SESSION&#61;&#61;",
        "FwoGZXIvYXdzEIr&#x2F;&#x2b;&#x26;SESSION==",
        "FwoGZXIvYXdzEIr\\/+&SESSION==",
        "FwoGZXIvYXdzEIr/\\u002B\\u0026SESSION\\u003d\\u003D",
    ],
)
@pytest.mark.parametrize("write", [lambda message: json.dumps({"message": message}).encode(), str.encode])
def test_a_secret_is_stars_however_it_is_spelt(spelt, write):
    told = read_error(400, {}, write(f"x-amz-security-token:{spelt} and {spelt}"), [TOKEN])
    assert told.message == "x-amz-security-token:*** and ***"


def test_code_and_request_id_are_no_way_around():
    told = read_error(400, {"x-amzn-errortype": TOKEN, "x-amzn-requestid": TOKEN}, b"{}", [TOKEN])
    assert (told.code, told.request_id) == ("***", "***")


@pytest.mark.parametrize("before", range(980, 1001))
def test_a_secret_is_hidden_before_the_message_is_cut(before):
    told = read_error(400, {}, json.dumps({"message": "x" * before + TOKEN}).encode(), [TOKEN])
    assert told.message == ("x" * before + "***")[:1000]


@pytest.mark.parametrize("cut", range(1, len(TOKEN)))
def test_a_secret_that_is_cut_off_at_the_end_of_what_is_looked_at_is_not_shown(cut):
    body = b"<p>".ljust(15_999 - cut) + b">" + TOKEN.encode() * 2
    assert read_error(400, {}, body, [TOKEN]).message in {"", "HTTP status 400 with no explanation"}


def test_all_of_them_are_hidden_and_an_emulators_short_ones_stay():
    body = json.dumps({"message": "the test stream, signed 0123456789abcdef by secret-secret-secret"}).encode()
    secrets = ["test", "", "0123456789abcdef", "secret-secret-secret"]
    assert read_error(400, {}, body, secrets).message == "the test stream, signed *** by ***"
