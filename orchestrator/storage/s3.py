"""Buckets of S3, and of stores that speak its protocol, over boto3."""

import os
import re
from typing import IO, Any

from orchestrator.errors import InputError
from orchestrator.storage.address import endpoint_url
from orchestrator.storage.object_store import CONNECT_SECONDS, SILENT_SECONDS, THREADS, Bucket

TRANSIENT = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "ThrottlingException"}
TRANSIENT |= {"ConditionalRequestConflict", "OperationAborted", "RequestTimeTooSkewed"}
DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "Forbidden"}
KEY_ID = re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b")
"""The form of AWS's own key ids."""
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")


class S3Bucket(Bucket):
    """A bucket of S3."""

    scheme = "s3"

    def __init__(self, name: str, host: str, anonymous: bool = False) -> None:
        """`anonymous`: without any credentials the requests are not signed, which is enough for a public bucket."""
        import boto3
        from boto3.exceptions import Boto3Error
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        super().__init__(name, host)
        self.failures = (Boto3Error, BotoCoreError, ClientError)
        endpoint = endpoint_url(self.scheme)
        try:
            session = boto3.session.Session()
            credentials = session.get_credentials()
            unsigned = anonymous and credentials is None
            self.client = session.client(
                "s3",
                endpoint_url=endpoint,
                region_name=os.environ.get("AWS_REGION") or None,  # boto3 itself reads AWS_DEFAULT_REGION only
                config=Config(
                    signature_version=UNSIGNED if unsigned else None,
                    connect_timeout=CONNECT_SECONDS,
                    read_timeout=SILENT_SECONDS,
                    max_pool_connections=THREADS,
                    retries={"mode": "standard", "total_max_attempts": 2},
                    s3={"addressing_style": "path" if endpoint else "auto"},
                    request_checksum_calculation="when_required",  # not every store supports the newer ones
                    response_checksum_validation="when_required",
                ),
            )
        except BotoCoreError as error:
            raise InputError(f"s3://{name}: {_without_secrets(error)}; look at the AWS_* variables and files") from None
        except ValueError:  # its text may contain a password
            raise InputError("AWS_ENDPOINT_URL: should be an address such as https://host:port") from None
        self.credentials = credentials

    def _get(self, key: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return data

    def _part(self, key: str, offset: int, length: int) -> bytes:
        span = f"bytes={offset}-{offset + length - 1}"
        data: bytes = self.client.get_object(Bucket=self.name, Key=key, Range=span)["Body"].read()
        return data

    def _size(self, key: str) -> int:
        return int(self.client.head_object(Bucket=self.name, Key=key)["ContentLength"])

    def _put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def _create(self, key: str, data: bytes) -> bool:
        try:
            self.client.put_object(Bucket=self.name, Key=key, Body=data, IfNoneMatch="*")
        except self.failures as error:
            if _code(error) not in ("PreconditionFailed", "412"):
                raise
            return False
        return True

    def _remove(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def _copy(self, key: str, new: str) -> None:
        self.client.copy({"Bucket": self.name, "Key": key}, self.name, new)

    def _keys(self, prefix: str, after: str) -> list[str]:
        return self._list(prefix, "Contents", "Key", StartAfter=after)

    def _folders(self, prefix: str) -> list[str]:
        return self._list(prefix, "CommonPrefixes", "Prefix", Delimiter="/")

    def _list(self, prefix: str, kind: str, name: str, **more: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix, **more)
        return [entry[name] for page in pages for entry in page.get(kind, [])]

    def _upload(self, file: IO[bytes], key: str) -> None:
        self.client.upload_fileobj(file, self.name, key)

    def _download(self, key: str, file: IO[bytes]) -> None:
        self.client.download_fileobj(self.name, key, file)

    def _is_missing(self, error: Exception) -> bool:
        return _code(error) in ("NoSuchKey", "404")

    def _is_transient(self, error: Exception) -> bool:
        from botocore.exceptions import ConnectionError, HTTPClientError, IncompleteReadError

        if isinstance(error, HTTPClientError | ConnectionError | IncompleteReadError):
            return True
        if _code(error) == "NotImplemented":
            return False
        return _code(error) in TRANSIENT or _status(error) in (408, 429) or _status(error) >= 500

    def _reason(self, error: Exception, waited: float) -> str:
        from botocore.exceptions import ConnectionError, HTTPClientError, NoCredentialsError, PartialCredentialsError

        code, look = _code(error), "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        text = self._without_keys(_without_secrets(error))
        if code == "NoSuchBucket":
            return f"no bucket '{self.name}' at {self.host}"
        if code in DENIED or code in ("403", "401"):
            return f"access denied by {self.host}; {look}"
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return f"no credentials for {self.host}; {look}"
        if code in ("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
            return f"the bucket is in another region; set AWS_REGION ({text})"
        if _status(error) in range(300, 400):
            return f"{self.host} redirects to another address; set AWS_ENDPOINT_URL to that of the store ({code})"
        if isinstance(error, HTTPClientError | ConnectionError):
            what = f"{type(error).__name__.removesuffix('Error')}, for {waited:.0f} s"
            return f"no connection to {self.host} ({what}); check AWS_ENDPOINT_URL and the network"
        return f"{self.host} answers {code or type(error).__name__}, for {waited:.0f} s ({text[:200]})"

    def _without_keys(self, text: str) -> str:
        """A text of the store without the credentials in use, wherever they come from."""
        if (credentials := self.credentials) is not None:
            for secret in filter(None, (credentials.access_key, credentials.secret_key, credentials.token)):
                text = text.replace(secret, "***")
        return KEY_ID.sub("***", text)


def _without_secrets(error: Exception) -> str:
    """An error's text as one line."""
    text = " ".join(str(error).split())
    for secret in filter(None, map(os.environ.get, SECRETS)):
        text = text.replace(secret, "***")
    return text


def _code(error: Exception) -> str:
    """S3's name of an error, or its status code."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _response(error: Exception) -> dict[str, Any]:
    return getattr(error, "response", None) or {}


def _status(error: Exception) -> int:
    return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
