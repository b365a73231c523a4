"""How are failures classified?"""

import pytest
from botocore.loaders import Loader

from shardline.core.error_codes import KIND_BY_CODE, Failure, FailureKind, classify, to_error
from shardline.errors import CredentialsError, RequestError, ServiceError, ShardlineError, TransportError

K = FailureKind

# The kind of each error code of the data plane.
DATA_PLANE = {
    "ProvisionedThroughputExceededException": K.THROTTLED,
    "KMSThrottlingException": K.THROTTLED,
    "InternalFailure": K.TRANSIENT,
    "InternalFailureException": K.TRANSIENT,
    "LimitExceededException": K.LIMIT_EXCEEDED,
    "ExpiredIteratorException": K.EXPIRED_ITERATOR,
    "ExpiredNextTokenException": K.EXPIRED_TOKEN,
    "ResourceInUseException": K.IN_USE,
    "ResourceNotFoundException": K.NOT_FOUND,
    "InvalidArgumentException": K.INVALID,
    "ValidationException": K.INVALID,
    "SerializationException": K.INVALID,
    "AccessDeniedException": K.DENIED,
    "KMSDisabledException": K.KMS,
    "KMSInvalidStateException": K.KMS,
    "KMSAccessDeniedException": K.KMS,
    "KMSNotFoundException": K.KMS,
    "KMSOptInRequired": K.KMS,
    "DryRunOperationException": K.DRY_RUN,
    "ExpiredTokenException": K.EXPIRED_CREDENTIALS,
    "RequestExpired": K.CLOCK_SKEW,
    "ThrottlingException": K.THROTTLED,
    "RequestTimeout": K.TRANSIENT,
}


def modelled_errors():
    """Return every error of every operation, and every exception that an event stream can carry."""
    model = Loader().load_service_model("kinesis", "service-2")
    shapes = model["shapes"]
    names = {error["shape"] for operation in model["operations"].values() for error in operation.get("errors", ())}
    names |= {name for name, shape in shapes.items() if shape.get("exception")}
    return sorted(shapes[name].get("error", {}).get("code", name) for name in names)


@pytest.mark.parametrize("code", modelled_errors())
def test_every_error_of_the_service_model_has_a_kind_of_its_own(code):
    assert code in KIND_BY_CODE


def test_the_service_model_was_really_read():
    assert {"ProvisionedThroughputExceededException", "KMSThrottlingException"} < set(modelled_errors())
    assert len(modelled_errors()) >= 17


@pytest.mark.parametrize(("code", "kind"), DATA_PLANE.items())
@pytest.mark.parametrize("status", [400, 403, 500, 503])
def test_a_known_code_decides_whatever_the_status(code, kind, status):
    assert classify(code, status) is kind


@pytest.mark.parametrize("code", sorted(KIND_BY_CODE))
def test_classify_says_what_the_table_says(code):
    assert classify(code, 400, "some message") is KIND_BY_CODE[code]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, K.INVALID),
        (301, K.INVALID),
        (400, K.INVALID),
        (401, K.DENIED),
        (403, K.DENIED),
        (404, K.INVALID),
        (407, K.DENIED),
        (408, K.TRANSIENT),
        (413, K.INVALID),
        (425, K.TRANSIENT),
        (429, K.THROTTLED),
        (499, K.INVALID),
        (500, K.TRANSIENT),
        (502, K.TRANSIENT),
        (503, K.TRANSIENT),
        (504, K.TRANSIENT),
        (509, K.THROTTLED),
        (599, K.TRANSIENT),
    ],
)
def test_an_unknown_code_is_judged_by_its_status(status, kind):
    assert classify("SomethingNew", status) is kind
    assert classify("", status) is kind


@pytest.mark.parametrize("code", ["Forbidden", "ValidationError", "AccessDenied", "ResourceNotFoundException", ""])
def test_a_response_without_an_error_type_is_never_fatal(code):
    for status in (*range(201, 600), 999):
        kind = classify(code, status, SKEWED[0], is_typed=False)
        assert kind is (K.THROTTLED if status in {429, 509} else K.TRANSIENT)
        assert Failure(kind, code, "").retryable


REFUSED = ["ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException", "InvalidClientTokenId"]
REFUSED += ["InvalidSignatureException", "SignatureDoesNotMatch", "InvalidAccessKeyId"]


@pytest.mark.parametrize("code", REFUSED)
def test_a_refusal_of_the_keys_is_worth_another_attempt_if_they_have_changed(code):
    failure = Failure(classify(code, 400), code, "")
    assert failure.refuses_credentials
    assert failure.after_look_up(changed=True).retryable
    assert failure.after_look_up(changed=False) == failure
    assert failure.retryable is code.startswith("ExpiredToken")


@pytest.mark.parametrize("code", sorted(set(KIND_BY_CODE) - set(REFUSED)))
def test_nothing_else_is_a_refusal_of_the_keys(code):
    assert not Failure(classify(code, 400), code, "").refuses_credentials


def test_a_skewed_clock_or_a_proxy_refuses_no_keys():
    for kind in (K.CLOCK_SKEW, K.TRANSIENT):
        assert not Failure(kind, "InvalidSignatureException", "").refuses_credentials


SKEWED = [
    "Signature expired: 20261115T120000Z is now earlier than 20261115T121500Z (20261115T122000Z - 5 min.)",
    "Signature not yet current: 20261115T120000Z is still later than 20261115T114500Z",
    "signature EXPIRED",
    "x is now later than y",
    "x is now earlier than y",
]


@pytest.mark.parametrize("message", SKEWED)
@pytest.mark.parametrize("code", ["InvalidSignatureException", "SignatureDoesNotMatch"])
def test_a_bad_signature_whose_words_tell_of_time_is_a_skewed_clock(code, message):
    assert classify(code, 403, message) is K.CLOCK_SKEW


@pytest.mark.parametrize("code", ["InvalidSignatureException", "SignatureDoesNotMatch"])
def test_a_bad_signature_with_other_words_is_denied(code):
    words = "The request signature we calculated does not match the signature you provided."
    assert classify(code, 403, words) is K.DENIED
    assert classify(code, 403) is K.DENIED


@pytest.mark.parametrize("code", ["AccessDeniedException", "ValidationException", "SomethingNew"])
def test_the_same_words_under_another_code_mean_nothing(code):
    assert classify(code, 400, SKEWED[0]) is not K.CLOCK_SKEW


RETRYABLE = {K.THROTTLED, K.TRANSIENT, K.EXPIRED_CREDENTIALS, K.CLOCK_SKEW, K.IN_USE, K.LIMIT_EXCEEDED}


@pytest.mark.parametrize("kind", FailureKind)
def test_retryable_means_that_the_same_request_may_succeed_later(kind):
    assert Failure(kind, "Code", "words").retryable is (kind in RETRYABLE)


def test_a_failure_may_have_been_received_unless_said_otherwise():
    assert Failure(K.TRANSIENT, "ReadTimeout", "no answer").maybe_received
    assert not Failure(K.TRANSIENT, "ConnectTimeout", "no connection", maybe_received=False).maybe_received


ANSWERED = Failure(
    kind=K.THROTTLED,
    code="ProvisionedThroughputExceededException",
    message="Rate exceeded for shard shardId-000000000000",
    status=400,
    request_id="c5e1-77",
    retry_after=2.5,
    maybe_received=True,
)


def facts(error):
    return (
        error.operation,
        error.kind,
        error.code,
        error.message,
        error.status,
        error.request_id,
        error.retry_after,
        error.maybe_received,
        error.retryable,
    )


def test_an_answered_failure_becomes_a_service_error_with_all_its_facts():
    error = to_error(ANSWERED, "PutRecords")
    assert type(error) is ServiceError
    assert facts(error) == (
        "PutRecords",
        "throttled",
        "ProvisionedThroughputExceededException",
        "Rate exceeded for shard shardId-000000000000",
        400,
        "c5e1-77",
        2.5,
        True,
        True,
    )
    assert str(error) == (
        "PutRecords failed: ProvisionedThroughputExceededException: Rate exceeded for shard shardId-000000000000"
        " (request id c5e1-77)"
    )


def test_an_unanswered_failure_becomes_a_transport_error_with_all_its_facts():
    failure = Failure(K.UNTRUSTED, "TlsError", "certificate verify failed", maybe_received=False)
    error = to_error(failure, "GetRecords")
    assert type(error) is TransportError
    assert facts(error) == (
        "GetRecords",
        "untrusted",
        "TlsError",
        "certificate verify failed",
        None,
        None,
        None,
        False,
        False,
    )
    assert str(error) == "GetRecords: certificate verify failed"


def test_missing_credentials_become_a_credentials_error():
    error = to_error(Failure(K.NO_CREDENTIALS, "NoCredentials", "none found", maybe_received=False), "PutRecords")
    assert type(error) is CredentialsError
    assert str(error) == "none found"


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if kind is not K.NO_CREDENTIALS])
@pytest.mark.parametrize("status", [None, 400])
def test_every_other_kind_becomes_a_request_error_whose_kind_is_plain_text(kind, status):
    error = to_error(Failure(kind, "Code", "words", status), "ListShards")
    assert isinstance(error, RequestError)
    assert isinstance(error, ShardlineError)
    assert type(error.kind) is str
    assert error.kind == kind.value


def test_a_failure_has_no_place_for_the_request():
    assert set(Failure._fields) == {
        "kind",
        "code",
        "message",
        "status",
        "request_id",
        "retry_after",
        "maybe_received",
    }
