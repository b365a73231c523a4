"""AWS's answers to the requests of kinesalite's ``test/connection.js``, as data: requests with invalid HTTP.

The commit is that of ``kinesalite_recordings.py``, which also explains why these are AWS's answers. The CORS cases are
missing: ``recorded_differences.py`` has them. AWS's answers in XML have no content type; ours have one, because aiohttp
always sends one.
"""

from dataclasses import dataclass, field

JSON = "application/x-amz-json-1.1"
CBOR = "application/x-amz-cbor-1.1"
XML = "application/xml"
LIST_STREAMS = {"x-amz-target": "Kinesis_20131202.ListStreams"}
JSON_LIST_STREAMS = {"content-type": JSON, **LIST_STREAMS}
UNKNOWN = {"__type": "UnknownOperationException"}
UNREADABLE = {"__type": "SerializationException"}
MISSING_TOKEN = {"__type": "MissingAuthenticationTokenException", "message": "Missing Authentication Token"}
DENIED = (
    "<AccessDeniedException>\n"
    "  <Message>Unable to determine service/operation name to be authorized</Message>\n"
    "</AccessDeniedException>\n"
)


@dataclass(frozen=True)
class Exchange:
    name: str
    status: int
    content_type: str
    answer: object
    method: str = "POST"
    path: str = "/"
    headers: dict = field(default_factory=dict)
    body: str = ""
    is_signed: bool = False


def old_form(name):
    return {"Output": {"__type": f"com.amazon.coral.service#{name}"}, "Version": "1.0"}


def incomplete(*errors):
    return {"__type": "IncompleteSignatureException", "message": " ".join(errors)}


def header_needs(*names):
    return [f"Authorization header requires '{name}' parameter." for name in names]


def query_needs(*names):
    return [f"AWS query-string parameters must include '{name}'." for name in names]


NEEDS_DATE = "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
EXAMINE = "Re-examine the query-string parameters."
NOTHING_OF_X = incomplete(*header_needs("Credential", "Signature", "SignedHeaders"), NEEDS_DATE, "Authorization=X")

EXCHANGES = [
    # what the content type makes of a request without a body
    Exchange("no auth", 400, CBOR, UNKNOWN),
    Exchange("signed", 400, CBOR, UNKNOWN, is_signed=True),
    *(
        Exchange(f"content type {kind}", 400, CBOR, UNKNOWN, headers={"content-type": kind}, is_signed=True)
        for kind in ("application/x-amz-json-1.0", "application/x-amz-json-1.1asdf", "application/json")
    ),
    *(
        Exchange(f"target {target}", 400, CBOR, UNKNOWN, headers={"x-amz-target": target}, is_signed=True)
        for target in (
            "Whatever",
            "Kinesis_20131202.",
            "Kinesis_20131202.Whatever",
            "Whatever.Whatever",
            "Kinesis_20131202.ListStream",
        )
    ),
    Exchange("no content type", 400, CBOR, UNREADABLE, headers=LIST_STREAMS, is_signed=True),
    Exchange(
        "application/json without a body",
        400,
        CBOR,
        UNREADABLE,
        headers={"content-type": "application/json", **LIST_STREAMS},
        is_signed=True,
    ),
    Exchange("JSON, no target", 400, JSON, UNKNOWN, headers={"content-type": JSON}, is_signed=True),
    Exchange("JSON, no target, no auth", 400, JSON, UNKNOWN, headers={"content-type": JSON}),
    Exchange("JSON, no body", 400, JSON, UNREADABLE, headers=JSON_LIST_STREAMS, is_signed=True),
    Exchange("JSON, no body, no auth", 400, JSON, UNREADABLE, headers=JSON_LIST_STREAMS),
    # requests that are not of this protocol
    *(Exchange(method, 403, XML, DENIED, method=method, is_signed=True) for method in ("GET", "PUT", "DELETE")),
    Exchange("a body without a content type", 403, XML, DENIED, body="{}", is_signed=True),
    # bodies, which are read before the signature is checked
    Exchange("no JSON", 400, JSON, UNREADABLE, headers=JSON_LIST_STREAMS, body="hello"),
    Exchange(
        "application/json",
        404,
        "application/json",
        old_form("UnknownOperationException"),
        headers={"content-type": "application/json", **LIST_STREAMS},
        body="{}",
    ),
    *(
        Exchange(
            f"no JSON in {kind!r}",
            400,
            "application/json",
            old_form("SerializationException"),
            headers={"content-type": kind, **LIST_STREAMS},
            body="hello",
        )
        for kind in ("application/json", "     application/json     ;")
    ),
    # signatures
    *(
        Exchange(
            f"no auth, {kind!r}", 400, JSON, MISSING_TOKEN, headers={"content-type": kind, **LIST_STREAMS}, body="{}"
        )
        for kind in (JSON, "   application/x-amz-json-1.1   ;whatever")
    ),
    *(
        Exchange(
            f"Authorization X, {path}",
            400,
            JSON,
            NOTHING_OF_X,
            path=path,
            headers={**JSON_LIST_STREAMS, "authorization": "X"},
            body="{}",
        )
        for path in ("/", "/?X-Amz-Algorith")
    ),
    *(
        Exchange(
            f"Authorization {value}",
            400,
            JSON,
            incomplete(*header_needs("SignedHeaders"), f"Authorization={value}"),
            headers={**JSON_LIST_STREAMS, "authorization": value, "date": "a"},
            body="{}",
        )
        for value in (
            "AWS4- Signature=b Credential=a",
            "AWS4- Signature=b,Credential=a",
            "AWS4- Signature=b, Credential=a",
        )
    ),
    Exchange(
        "a query without X-Amz-Algorithm",
        400,
        JSON,
        MISSING_TOKEN,
        path="/?X-Amz-Credential=a&X-Amz-Signature=b&X-Amz-SignedHeaders=c&X-Amz-Date=d",
        headers=JSON_LIST_STREAMS,
        body="{}",
    ),
    Exchange(
        "a header and a query",
        400,
        JSON,
        {
            "__type": "InvalidSignatureException",
            "message": "Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header.",
        },
        path="/?X-Amz-Algorithm",
        headers={**JSON_LIST_STREAMS, "authorization": "X"},
        body="{}",
    ),
    Exchange(
        "an empty X-Amz-Algorithm",
        400,
        JSON,
        incomplete(
            *query_needs("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Date"),
            EXAMINE,
        ),
        path="/?X-Amz-Algorithm",
        headers=JSON_LIST_STREAMS,
        body="{}",
    ),
    Exchange(
        "no X-Amz-SignedHeaders",
        400,
        JSON,
        incomplete(*query_needs("X-Amz-SignedHeaders"), EXAMINE),
        path="/?X-Amz-Algorithm=a&X-Amz-Credential=b&X-Amz-Signature=c&X-Amz-Date=d",
        headers=JSON_LIST_STREAMS,
        body="{}",
    ),
]
