"""Who may call: the hosts and origins that are answered, and the tenant behind a key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gateway.parts import Access
from orchestration.core.errors import Forbidden, Unauthorized

DEFAULT_TENANT = "default"


class Gatekeeper:
    """Decide from a request's headers alone; holds no state, so one serves all requests."""

    def __init__(self, access: Access) -> None:
        self._master_key = access.master_key
        self._keys = access.keys
        # blake2b takes keys of up to 64 bytes.
        self._tenant_key = hashlib.sha256(access.tenant_key.reveal().encode()).digest()
        self._hosts = frozenset(host.lower().strip("[]") for host in access.allowed_hosts)
        self._suffixes = tuple(host[1:] for host in self._hosts if host.startswith("*."))

    def check_site(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `Forbidden` unless `Host` is ours and `Origin`, where a browser sent one, is of the same site.

        A page of a stranger's whose name was rebound to this address carries the stranger's name in `Host`.
        """
        host = _host_of(headers.get(b"host", b"").decode("latin-1"))
        if not self._is_ours(host):
            message = f"This gateway does not answer for the host '{host[:128]}' (server.allowed_hosts adds names)."
            raise Forbidden(message, code="host_not_allowed")
        origin = headers.get(b"origin")
        if origin is None:
            return
        scheme, _, authority = origin.decode("latin-1").partition("://")
        from_host = _host_of(authority)
        if scheme not in ("http", "https") or not (from_host == host or (from_host and self._is_named(from_host))):
            raise Forbidden("Pages of other sites may not call this gateway.", code="origin_not_allowed")

    def tenant_of(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the tenant's name: an issued key's id, or a keyed hash of any other key.

        Raises `Unauthorized` where keys are needed and this is neither a live one nor the master key.
        """
        key = _key_of(headers)
        if self._master_key is not None and self._master_key.matches(key):
            return self._hashed(key)
        if self._keys is not None and self._keys.is_in_use:
            if not key:
                raise _missing()
            return self._keys.admit(key)
        if self._master_key is not None:
            self._check_master(key)
        return self._hashed(key)

    def check_model(self, tenant: str, model: str) -> None:
        """Raise `Forbidden` where the tenant is a key that may not ask for this model."""
        if not self.may_use(tenant, model):
            message = f"This API key may not use the model '{model[:256]}'."
            raise Forbidden(message, param="model", code="model_not_allowed")

    def may_use(self, tenant: str, model: str) -> bool:
        """Tell whether the tenant may ask for this model: an issued key may be bound to some."""
        return self._keys is None or self._keys.may_use(tenant, model)

    def _hashed(self, key: str) -> str:
        if not key:
            return DEFAULT_TENANT
        return hashlib.blake2b(key.encode(), key=self._tenant_key, digest_size=16).hexdigest()

    def check_admin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `Unauthorized` unless the master key came, where one is set."""
        if self._master_key is not None:
            self._check_master(_key_of(headers))

    def _check_master(self, key: str) -> None:
        assert self._master_key is not None, "the caller looked"
        if not key:
            raise _missing()
        if not self._master_key.matches(key):
            raise Unauthorized("Incorrect API key provided.")

    def _is_ours(self, host: str) -> bool:
        return bool(host) and ("*" in self._hosts or self._is_named(host))

    def _is_named(self, host: str) -> bool:
        return host in self._hosts or (bool(self._suffixes) and host.endswith(self._suffixes))


def _missing() -> Unauthorized:
    return Unauthorized("You didn't provide an API key: send it as 'Authorization: Bearer KEY'.")


def _key_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the key that came, or nothing. Another scheme than Bearer is a key as a whole: its own tenant."""
    authorization = headers.get(b"authorization", b"").decode("latin-1").strip()
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":
        authorization = token.strip()
    return authorization or headers.get(b"x-api-key", b"").decode("latin-1").strip()


def _host_of(authority: str) -> str:
    """Return the host of `host:port`, in lower case and without the brackets of an IPv6 address."""
    authority = authority.strip().lower()
    if "," in authority:
        return ""  # two hosts are none
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]
