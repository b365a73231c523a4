"""Reads the ordinary AWS configuration through botocore: region, credentials, CA bundle and endpoints.

Only this module uses objects of botocore and boto3. Everything here blocks (it reads files and may use the network:
SSO, STS, IMDS), so it runs in worker threads only.

Invariants:

- Every configuration that botocore resolves works here, because botocore's own chains are used.
- Only botocore's public interface is used. To find the endpoint of a call, a botocore client prepares that very call,
  and is stopped before it signs the call: while signing, it would log the session token.
- Every exception from botocore becomes a ``UsageError`` or a ``CredentialsError`` with one sentence that says what to
  do.
- Only one thread at a time uses the session, because botocore's sessions are not thread-safe.
- No secret gets into a log or an exception while botocore loads credentials.
- The region that the caller passed also applies to botocore's own calls, such as AssumeRole.
"""

import inspect
import os
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import botocore.config
import botocore.exceptions
import botocore.session

from shardline.adapters.aws.botocore_log import keeping_secrets
from shardline.errors import CredentialsError, UsageError
from shardline.model.credentials import Credentials

if TYPE_CHECKING:
    from shardline.adapters.aws.aws_service import AwsSettings

_NO_CREDENTIALS: Final = (
    "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or pass "
    "credentials=Credentials(...)"
)
# Not all of these are subclasses of BotoCoreError: a role that may not be assumed raises ClientError, a
# credential_process that is missing or prints no JSON raises OSError or ValueError, and a refresh that yields expired
# credentials raises RuntimeError.
_BOTOCORE_RAISES: Final = (
    botocore.exceptions.BotoCoreError,
    botocore.exceptions.ClientError,
    OSError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_QUOTED_RESPONSE: Final = re.compile(r"(?<=from container metadata): .*", re.DOTALL)
_EXPIRY_MAX: Final = 7 * 24 * 3600  # seconds; no session lasts longer
_NO_REGION: Final = "no AWS region found: pass region=, or set AWS_REGION, AWS_DEFAULT_REGION or a profile's region"


class _PreparedError(Exception):
    """Raised inside botocore when a call is ready to be signed. Carries the endpoint."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


def _stop_before_signing(params: Any, **_: object) -> None:
    url, path = str(params["url"]), str(params["url_path"])
    # In the protocol that botocore prefers, each operation may have a path (as for CloudWatch). In JSON, our protocol,
    # operations have no path.
    raise _PreparedError(url if path == "/" else f"{url.removesuffix(path)}/")


@final
class CredentialFacts(NamedTuple):
    """Facts about credentials that are safe to show: no secret key, no token."""

    method: str
    """Botocore's name for the source of the credentials: ``env``, ``shared-credentials-file``, ``sso``, ``iam-role``,
    ...
    """
    access_key: str
    is_temporary: bool
    seconds_left: int | None
    """Seconds until the credentials expire, up to ``_EXPIRY_MAX``, or ``None`` if botocore does not know."""


@final
class BotocoreSession:
    """A botocore session with the few methods that we need."""

    def __init__(self, settings: "AwsSettings", service: str = "kinesis") -> None:
        self._settings = settings
        self._service = service
        self._using = threading.RLock()
        self._session = self._open()
        self._client: Any = None

    def _open(self) -> Any:
        if self._settings.session is not None:
            return _botocore_session_of(self._settings.session)
        opened: Any = botocore.session.Session(profile=self._settings.profile)
        named = self._settings.region or os.environ.get("AWS_REGION")
        if named:
            opened.set_config_variable("region", named)
        if self._settings.profile is not None:
            try:
                profiles = opened.available_profiles
            except botocore.exceptions.BotoCoreError as error:
                raise UsageError(f"the AWS configuration cannot be read: {error}") from None
            if self._settings.profile not in profiles:
                known = ", ".join(sorted(profiles)) or "none"
                raise UsageError(
                    f"the profile {self._settings.profile!r} is not in the AWS config files; they have: {known}"
                )
        return opened

    def _setting(self, name: str) -> str | None:
        try:
            with self._using:
                found = self._session.get_config_variable(name)
        except botocore.exceptions.BotoCoreError as error:
            raise UsageError(f"the AWS configuration cannot be read: {error}") from None
        return str(found) if found else None

    @property
    def region(self) -> str:
        """The region that the caller passed, or the configured one.

        Raises:
            UsageError: no region is configured.
        """
        if self._settings.region is not None:
            return self._settings.region
        ambient = os.environ.get("AWS_REGION")  # botocore ignores this variable
        found = (
            self._setting("region") or ambient
            if self._settings.session is not None
            else ambient or self._setting("region")
        )
        if not found:
            raise UsageError(_NO_REGION)
        return found

    @property
    def ca_bundle(self) -> str | None:
        """The CA bundle from AWS_CA_BUNDLE, the profile's ca_bundle, or REQUESTS_CA_BUNDLE, in botocore's order.

        Raises:
            UsageError: the configuration cannot be read.
        """
        return self._setting("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or None

    def credentials(self, *, reload: bool) -> tuple[Credentials, bool]:
        """Return the current credentials and whether they can change.

        Botocore refreshes credentials that are about to expire.

        Args:
            reload: discard the session's cached credentials, and go through the whole chain again.

        Raises:
            CredentialsError: there are no credentials, or they could not be loaded.
        """
        try:
            with self._using, keeping_secrets():
                if reload and self._settings.session is None:
                    self._session = self._open()
                found = self._session.get_credentials()
                frozen = None if found is None else found.get_frozen_credentials()
        except _BOTOCORE_RAISES as error:
            raise CredentialsError(f"the AWS credentials could not be loaded: {_message(error)}") from None
        if frozen is None or not frozen.access_key or not frozen.secret_key:
            raise CredentialsError(_NO_CREDENTIALS)
        try:
            keys = Credentials(frozen.access_key, frozen.secret_key, frozen.token or None)
        except UsageError as error:  # for example, a variable that was set from a file together with its line end
            raise CredentialsError(f"the AWS credentials are unusable: {error}") from None
        return keys, hasattr(found, "refresh_needed")

    def credential_facts(self) -> CredentialFacts:
        """Return facts about the current credentials that are safe to show.

        Raises:
            CredentialsError: there are no credentials, or they could not be loaded.
        """
        keys, _ = self.credentials(reload=False)
        with self._using, keeping_secrets():
            found = self._session.get_credentials()
        return CredentialFacts(str(found.method), keys.access_key, keys.session_token is not None, _time_left(found))

    def caller_identity(self, timeout: float) -> str:
        """Return the ARN of the identity that the credentials belong to, from AWS's STS.

        Args:
            timeout: the number of seconds for connecting to STS, and for its answer.

        Raises:
            CredentialsError: STS did not answer, or does not accept the credentials.
        """
        once = botocore.config.Config(connect_timeout=timeout, read_timeout=timeout, retries={"total_max_attempts": 1})
        try:
            with self._using, keeping_secrets():
                client = self._session.create_client("sts", region_name=self.region, config=once)
                return str(client.get_caller_identity()["Arn"])
        except _BOTOCORE_RAISES as error:
            raise CredentialsError(f"STS does not name the caller: {_message(error)}") from None

    def endpoint(self, operation: str, params: Mapping[str, object]) -> str:
        """Return the URL that botocore would send this call to.

        Raises:
            UsageError: the settings yield no endpoint.
            CredentialsError: the endpoint depends on credentials, which could not be loaded.
        """
        try:
            with self._using, keeping_secrets():
                self._prepare(operation, params)
        except _PreparedError as prepared:
            return prepared.url
        except botocore.exceptions.NoCredentialsError:
            raise CredentialsError(_NO_CREDENTIALS) from None
        except _BOTOCORE_RAISES as error:
            raise UsageError(f"no endpoint for {operation}: {_message(error)}") from None
        raise AssertionError("a botocore client sent a call that should have been stopped")

    def _prepare(self, operation: str, params: Mapping[str, object]) -> None:
        """Let botocore prepare a call. For an operation that botocore does not know, prepare DescribeStreamSummary."""
        client = self._endpoint_client()
        methods: dict[str, str] = {name: method for method, name in client.meta.method_to_api_mapping.items()}
        known = operation if operation in methods else "DescribeStreamSummary"
        members: Mapping[str, object] = client.meta.service_model.operation_model(known).input_shape.members
        getattr(client, methods[known])(**{name: value for name, value in params.items() if name in members})

    def _endpoint_client(self) -> Any:
        if self._client is None:
            explicit = self._settings.credentials
            client = self._session.create_client(
                self._service,
                region_name=self.region,
                aws_access_key_id=explicit.access_key if explicit else None,
                aws_secret_access_key=explicit.secret_key if explicit else None,
                aws_session_token=explicit.session_token if explicit else None,
                config=botocore.config.Config(
                    parameter_validation=False,
                    retries={"total_max_attempts": 1},
                    use_fips_endpoint=self._settings.use_fips,
                    use_dualstack_endpoint=self._settings.use_dualstack,
                ),
            )
            client.meta.events.register(f"before-call.{self._service}", _stop_before_signing)
            self._client = client
        return self._client


def _message(error: Exception) -> str:
    """Return botocore's message without the response that it quotes, which may contain credentials."""
    if isinstance(error, botocore.exceptions.MetadataRetrievalError | botocore.exceptions.CredentialRetrievalError):
        return _QUOTED_RESPONSE.sub("", str(error))
    return str(error)


def _time_left(found: Any) -> int | None:
    """Return the number of seconds until refreshable credentials expire.

    Botocore only says whether they expire within a given time, so a binary search finds the number.
    """
    if not hasattr(found, "refresh_needed") or not found.refresh_needed(_EXPIRY_MAX):
        return None
    low, high = 0, _EXPIRY_MAX
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found.refresh_needed(middle) else (middle, high)
    return low


def _botocore_session_of(given: Any) -> Any:
    """Return the botocore session in the session that the caller passed. A ``boto3.Session`` contains one."""
    found = getattr(given, "_session", given)
    if not isinstance(found, botocore.session.Session):
        raise UsageError(f"session must be a boto3.Session or a botocore Session, not {type(given).__name__}")
    if inspect.iscoroutinefunction(found.get_credentials):
        raise UsageError(f"session must be a boto3.Session or a botocore Session: {type(given).__name__} is async")
    return found
