"""What do AWS's own settings say: region, credentials, CA bundle, endpoints?

The one module that touches botocore's (and boto3's) objects. Everything here blocks: it reads files and may ask the
network (SSO, STS, IMDS), so it runs in worker threads only.

Invariants:

- Whatever botocore resolves, works: nothing of its chains is done again here.
- Only botocore's public interface is used. The endpoint of a call is learnt by letting a botocore client prepare
  that very call and stopping it before it is signed: botocore would log the session token.
- What botocore raises becomes a ``UsageError`` or a ``CredentialsError`` with one sentence that says what to do.
- One thread at a time uses the session: botocore's are not safe for several.
- Whatever botocore logs and raises on the way to credentials, no secret gets out.
- The region that was named for us is that of botocore's own calls too: a role is assumed somewhere.
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
    from shardline.adapters.aws.aws_service import AwsWishes

_NO_CREDENTIALS: Final = (
    "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or pass "
    "credentials=Credentials(...)"
)
# A role that may not be assumed is a ClientError, a credential_process that is missing or prints no JSON an OSError or
# a ValueError, and a refresh that brings expired credentials a RuntimeError: none of them is a BotoCoreError.
_BOTOCORE_RAISES: Final = (
    botocore.exceptions.BotoCoreError,
    botocore.exceptions.ClientError,
    OSError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
_QUOTED_ANSWER: Final = re.compile(r"(?<=from container metadata): .*", re.DOTALL)
_FAR: Final = 7 * 24 * 3600  # seconds: no session lasts longer
_NO_REGION: Final = "no AWS region found: pass region=, or set AWS_REGION, AWS_DEFAULT_REGION or a profile's region"


class _PreparedError(Exception):
    """Raised inside botocore when a call is ready to be signed: it carries the address."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


def _stop_before_signing(params: Any, **_: object) -> None:
    raise _PreparedError(params["url"])


@final
class CredentialFacts(NamedTuple):
    """Credentials without their secret."""

    method: str
    """Where botocore found them, in its words: ``env``, ``shared-credentials-file``, ``sso``, ``iam-role``, ..."""
    access_key: str
    is_temporary: bool
    seconds_left: int | None
    """Until they expire, up to ``_FAR``; ``None`` where botocore does not know."""


@final
class BotocoreSession:
    """A botocore session under our own words."""

    def __init__(self, wishes: "AwsWishes", service: str = "kinesis") -> None:
        self._wishes = wishes
        self._service = service
        self._using = threading.RLock()
        self._session = self._open()
        self._client: Any = None

    def _open(self) -> Any:
        if self._wishes.session is not None:
            return _botocore_session_of(self._wishes.session)
        opened: Any = botocore.session.Session(profile=self._wishes.profile)
        named = self._wishes.region or os.environ.get("AWS_REGION")
        if named:
            opened.set_config_variable("region", named)
        if self._wishes.profile is not None:
            try:
                profiles = opened.available_profiles
            except botocore.exceptions.BotoCoreError as error:
                raise UsageError(f"the AWS configuration cannot be read: {error}") from None
            if self._wishes.profile not in profiles:
                known = ", ".join(sorted(profiles)) or "none"
                raise UsageError(
                    f"the profile {self._wishes.profile!r} is not in the AWS config files; they have: {known}"
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
        """The region, an explicit one first.

        Raises:
            UsageError: none is configured.
        """
        if self._wishes.region is not None:
            return self._wishes.region
        ambient = os.environ.get("AWS_REGION")  # which botocore does not know
        found = (
            self._setting("region") or ambient
            if self._wishes.session is not None
            else ambient or self._setting("region")
        )
        if not found:
            raise UsageError(_NO_REGION)
        return found

    @property
    def ca_bundle(self) -> str | None:
        """AWS_CA_BUNDLE, the profile's ca_bundle, or REQUESTS_CA_BUNDLE, as botocore does.

        Raises:
            UsageError: the configuration cannot be read.
        """
        return self._setting("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or None

    def credentials(self, *, afresh: bool) -> tuple[Credentials, bool]:
        """The current credentials, refreshed by botocore if they are about to expire, and whether they can change.

        Args:
            afresh: forget what the session remembers, and go through the whole chain again.

        Raises:
            CredentialsError: there are none, or they could not be had.
        """
        try:
            with self._using, keeping_secrets():
                if afresh and self._wishes.session is None:
                    self._session = self._open()
                found = self._session.get_credentials()
                frozen = None if found is None else found.get_frozen_credentials()
        except _BOTOCORE_RAISES as error:
            raise CredentialsError(f"the AWS credentials could not be had: {_told(error)}") from None
        if frozen is None or not frozen.access_key or not frozen.secret_key:
            raise CredentialsError(_NO_CREDENTIALS)
        try:
            keys = Credentials(frozen.access_key, frozen.secret_key, frozen.token or None)
        except UsageError as error:  # a line end from the file that a variable was filled from, say
            raise CredentialsError(f"the AWS credentials are unusable: {error}") from None
        return keys, hasattr(found, "refresh_needed")

    def credential_facts(self) -> CredentialFacts:
        """What can be told of the current credentials: no secret, and nothing that leads to one.

        Raises:
            CredentialsError: there are none, or they could not be had.
        """
        keys, _ = self.credentials(afresh=False)
        with self._using, keeping_secrets():
            found = self._session.get_credentials()
        return CredentialFacts(str(found.method), keys.access_key, keys.session_token is not None, _time_left(found))

    def endpoint(self, operation: str, params: Mapping[str, object]) -> str:
        """The address that botocore would send this call to.

        Raises:
            UsageError: the settings lead to no endpoint.
            CredentialsError: they depend on credentials, which could not be had.
        """
        try:
            with self._using, keeping_secrets():
                self._prepare(operation, params)
        except _PreparedError as prepared:
            return prepared.url
        except botocore.exceptions.NoCredentialsError:
            raise CredentialsError(_NO_CREDENTIALS) from None
        except _BOTOCORE_RAISES as error:
            raise UsageError(f"no endpoint for {operation}: {_told(error)}") from None
        raise AssertionError("a botocore client sent a call that was to be stopped")

    def _prepare(self, operation: str, params: Mapping[str, object]) -> None:
        """Let botocore prepare a call. One that it does not know goes where stream descriptions go."""
        client = self._endpoint_client()
        methods: dict[str, str] = {name: method for method, name in client.meta.method_to_api_mapping.items()}
        known = operation if operation in methods else "DescribeStreamSummary"
        members: Mapping[str, object] = client.meta.service_model.operation_model(known).input_shape.members
        getattr(client, methods[known])(**{name: value for name, value in params.items() if name in members})

    def _endpoint_client(self) -> Any:
        if self._client is None:
            explicit = self._wishes.credentials
            client = self._session.create_client(
                self._service,
                region_name=self.region,
                aws_access_key_id=explicit.access_key if explicit else None,
                aws_secret_access_key=explicit.secret_key if explicit else None,
                aws_session_token=explicit.session_token if explicit else None,
                config=botocore.config.Config(
                    parameter_validation=False,
                    retries={"total_max_attempts": 1},
                    use_fips_endpoint=self._wishes.use_fips,
                    use_dualstack_endpoint=self._wishes.use_dualstack,
                ),
            )
            client.meta.events.register(f"before-call.{self._service}", _stop_before_signing)
            self._client = client
        return self._client


def _told(error: Exception) -> str:
    """What botocore says of it, without the answer that it quotes: that may hold credentials."""
    if isinstance(error, botocore.exceptions.MetadataRetrievalError | botocore.exceptions.CredentialRetrievalError):
        return _QUOTED_ANSWER.sub("", str(error))
    return str(error)


def _time_left(found: Any) -> int | None:
    """Seconds until refreshable credentials expire: botocore tells only whether that is within a given time."""
    if not hasattr(found, "refresh_needed") or not found.refresh_needed(_FAR):
        return None
    low, high = 0, _FAR
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found.refresh_needed(middle) else (middle, high)
    return low


def _botocore_session_of(given: Any) -> Any:
    """The session that a caller passed in: a ``boto3.Session`` wraps one of botocore's."""
    found = getattr(given, "_session", given)
    if not isinstance(found, botocore.session.Session):
        raise UsageError(f"session must be a boto3.Session or a botocore Session, not {type(given).__name__}")
    if inspect.iscoroutinefunction(found.get_credentials):
        raise UsageError(f"session must be a boto3.Session or a botocore Session: {type(given).__name__} is async")
    return found
