"""The composition root: settings become stores, layers, backends and one handler. It says what runs, in which order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from backends.registry import BackendFactory
from cache.embeddings import EmbeddingBackend
from cache.owner_client import OwnerClient
from gateway import model_store
from gateway.admin_parts import AdminParts, Holder
from gateway.cache_admin import CacheAdmin, cache_routes
from gateway.cache_keeping import CacheKeeping
from gateway.cache_layers import CacheLayers, cache_bounds
from gateway.cache_learning import CacheLearning
from gateway.checks import CheckPlan, caller_of, judge_rules, plan_checks, secrets_mask
from gateway.company import Company
from gateway.deployments import node_name
from gateway.facts import in_use, processes
from gateway.ids import new_ulid
from gateway.layers import LayerSpec, build_stranger, read_layers
from gateway.limits.plan import build_limits
from gateway.live_nodes import LiveNodes
from gateway.own_parts import OwnParts
from gateway.parts import Access, AppParts, ModelCard
from gateway.refusals import StartRefused
from gateway.route_hash import RouteHashes
from gateway.routing import RoutingWatch, build_routes, choices_before_caches, price_of, remote_options
from gateway.settings import BackendSettings, ModelSettings, Settings
from gateway.supervisor.plan import database_url, redis_url
from gateway.wired import Surroundings, Wired
from logging_layer.call_log import CallLog
from logging_layer.listing import CallListing
from logging_layer.reader import CallReader
from logging_layer.spool import Spool
from logging_layer.stages import timed, timed_handler
from orchestration.core import Backend, Layer, Route, Router, Secret, compose
from orchestration.core.chooser import Chooser
from orchestration.core.rpc import RpcClient
from validators.guardrails_client import GuardrailsClient
from validators.hit_checks import HitChecks
from validators.input_checks import InputChecks
from validators.judge import JudgeChecks, verdicts
from validators.output_checks import OutputChecks

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
CACHES = ("exact_cache", "semantic_cache")
BEHIND_CHOICE = (*CACHES, "router")
BEHIND_JUDGE = ("input_checks", "output_checks", *BEHIND_CHOICE)


def wire(settings: Settings, place: Surroundings) -> Wired:
    """Build everything once; does no I/O beyond reading small files. Raises `Refused` where something is wrong."""
    return _Wiring(settings, place).build()


class _Wiring:
    """The parts while they are put together."""

    def __init__(self, settings: Settings, place: Surroundings) -> None:
        self._settings = settings
        self._place = place
        self._redis_url = redis_url(settings, place.sockets)
        database = database_url(settings, place.state)
        self._checks: CheckPlan = plan_checks(settings)
        self._factory = BackendFactory()
        self._owner = OwnerClient(place.sockets.cache)
        index = self._owner if settings.uses_semantic_cache else None
        self._keeping = CacheKeeping(self._redis_url, bounds=cache_bounds(settings), index=index)
        self._store = self._keeping.store
        self._guard = GuardrailsClient(place.sockets.guard)
        self._shipper = RpcClient(place.sockets.shipper)
        self._spool = place.spool or Spool(place.state.spool, worker=place.worker)
        self._reader = CallReader(database, place.state.spool)
        self._listing = CallListing(database)
        self._learning = CacheLearning(database, metrics=place.cache_metrics, listing=self._listing)
        self._feedback = self._learning.feedback(calls=self._reader, store=self._store)
        self._company = Company(place.sockets.run)
        self._routes = RouteHashes(settings)
        self._limits = build_limits(
            settings,
            tenant_key=Secret(place.state.tenant_key_file.read_text()),
            redis_url=self._redis_url,
            database_url=database,
        )
        self._caller_of = caller_of(self._limits.book)
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._nodes = self._live_nodes()

    def build(self) -> Wired:
        settings = self._settings
        routes = build_routes(settings, self._backend, node=node_name(self._place.state.path))
        layers = self._layers(routes)
        watch = RoutingWatch(
            routes,
            standings=self._place.standings,
            redis_url=self._redis_url,
            health_interval_s=settings.routing.health_interval_s,
        )
        numbers = self._numbers()
        parts = AppParts(
            handler=compose(layers, timed_handler("router", Router(routes, standings=self._place.standings))),
            models=self._cards(routes),
            access=self._access(),
            calls=self._reader,
            health=numbers.health(routes),
            stats=numbers.stats(),
            histograms={"cache_owner": numbers.owner_histograms} if settings.uses_embedder else {},
            price_of=partial(price_of, routes),
            engine=self._factory.engine_measures if self._settings.uses_engine else None,
            tokens=self._factory.tokens,
            metrics_folder=self._place.sockets.metrics,
            max_body_bytes=int(settings.server.max_body_mb * 1024 * 1024),
            stream_commit_s=settings.server.stream_commit_s,
            is_draining=self._place.is_draining,
            backends=watch.describe,
            admin=self._admin(),
        )
        self._closers += [
            watch.aclose,
            self._learning.aclose,
            self._keeping.aclose,
            self._factory.aclose,
            self._owner.aclose,
            self._guard.aclose,
            self._shipper.aclose,
            self._reader.aclose,
            *self._limits.closers,
            self._listing.aclose,
            self._company.aclose,
        ]
        return Wired(
            parts=parts,
            spool=self._spool,
            book=self._limits.book,
            watch=watch,
            learning=self._learning,
            feedback=self._feedback,
            keeping=self._keeping,
            owns_spool=self._place.spool is None,
            closers=self._closers,
            nodes=self._nodes,
        )

    def _layers(self, routes: Mapping[str, Route]) -> list[Layer]:
        """Build the list `layers:`; what is switched off, or has nothing to do in this version, is left out."""
        caches = self._cache_layers()
        builders: Mapping[str, Callable[[], Layer | None]] = {
            "call_log": self._call_log,
            "limits": lambda: self._limits.layer,
            "input_checks": lambda: InputChecks(self._checks.rules("input", self._guard), caller_of=self._caller_of),
            "exact_cache": caches.exact,
            "semantic_cache": lambda: caches.semantic(routes),
            "output_checks": lambda: OutputChecks(self._checks.rules("output", self._guard), caller_of=self._caller_of),
            "router": lambda: None,  # the core, which is no layer
        }
        layers: list[Layer] = []
        waiting = self._before_others(routes)
        for spec in read_layers(self._settings.layers):
            layers += [layer for layer, names in waiting if spec.name in names]
            waiting = [(layer, names) for layer, names in waiting if spec.name not in names]
            layer = self._stranger(spec) if spec.is_stranger else builders[spec.name]()
            if layer is not None:
                layers.append(timed(spec.name, layer))
        return layers

    def _before_others(self, routes: Mapping[str, Route]) -> list[tuple[Layer, Sequence[str]]]:
        """Build the layers that the list does not name, each with those of which it stands before the first."""
        choices = choices_before_caches(self._settings, routes)
        hits = self._hit_checks()
        layers: list[tuple[Layer | None, Sequence[str]]] = [
            (self._answer_judge(routes), BEHIND_JUDGE),
            (None if hits is None else timed("hit_checks", hits), CACHES),
            (Chooser(choices) if choices else None, BEHIND_CHOICE),
        ]
        return [(layer, names) for layer, names in layers if layer is not None]

    def _answer_judge(self, routes: Mapping[str, Route]) -> Layer | None:
        """Judge answers off the path by calls of their own, each with a record."""
        rules = judge_rules(self._settings)
        if not rules:
            return None
        handler = compose([self._call_log(), verdicts], Router(routes, standings=self._place.standings))
        judge = JudgeChecks(rules, handler, new_id=new_ulid, caller_of=self._caller_of)
        self._closers.append(judge.aclose)
        return judge

    def _hit_checks(self) -> Layer | None:
        rules = self._checks.hit_rules(self._guard) if self._settings.uses_semantic_cache else ()
        return HitChecks(rules, caller_of=self._caller_of) if rules else None

    def _call_log(self) -> Layer:
        mask = secrets_mask() if self._checks.finds_secrets else None
        return CallLog(
            self._spool,
            content=self._settings.content,
            worker=self._place.worker,
            mask=mask,
            watcher=self._place.live,
        )

    def _cache_layers(self) -> CacheLayers:
        return CacheLayers(
            self._settings,
            self._keeping,
            self._learning,
            self._owner,
            self._routes,
            policy_of=self._checks.policy_of(self._caller_of),
            standings=self._place.standings,
            closers=self._closers,
        )

    def _numbers(self) -> OwnParts:
        return OwnParts(
            settings=self._settings,
            checks=self._checks,
            store=self._store,
            spool=self._spool,
            book=self._limits.book,
            factory=self._factory,
            owner=self._owner,
            guard=self._guard,
            shipper=self._shipper,
            learning=self._learning,
        )

    def _stranger(self, spec: LayerSpec) -> Layer:
        layer = build_stranger(spec, folder=self._place.folder)
        close = getattr(layer, "aclose", None)
        if close is not None:
            self._closers.append(close)
        return layer

    def _backend(self, model: ModelSettings, backend: BackendSettings) -> Backend:
        if backend.type == "embedder":
            return EmbeddingBackend(self._owner, model=self._settings.cache.semantic.model)
        is_engine = backend.type == "engine"
        engine = self._settings.engine
        return self._factory.create(
            replace(
                remote_options(model, backend),
                engine_address=(engine.connect or f"unix://{self._place.sockets.engine}") if is_engine else None,
                model_path=_located(engine.model) if is_engine else None,
            )
        )

    def _cards(self, routes: Mapping[str, Route]) -> list[ModelCard]:
        # When this installation was made: the same for every worker and after every restart.
        created = int(self._place.state.tenant_key_file.stat().st_mtime)
        return [ModelCard(id=name, kinds=route.kinds, created=created) for name, route in routes.items()]

    def _access(self) -> Access:
        server = self._settings.server
        hosts = dict.fromkeys((*LOOPBACK_NAMES, server.host, *server.allowed_hosts))
        return Access(
            tenant_key=Secret(self._place.state.tenant_key_file.read_text()),
            master_key=self._settings.keys.master,
            keys=self._limits.book,
            allowed_hosts=tuple(hosts),
        )

    def _live_nodes(self) -> LiveNodes | None:
        """Show calls to other nodes, where a Redis of one's own may have some."""
        if self._settings.redis.url is None:
            return None
        nodes = LiveNodes(
            self._settings.redis.url.reveal(),
            live=self._place.live,
            node=node_name(self._place.state.path),
            worker=self._place.worker,
        )
        self._closers.append(nodes.aclose)
        return nodes

    def _admin(self) -> AdminParts:
        facts = in_use(self._settings, node=node_name(self._place.state.path), worker=self._place.worker)
        return AdminParts(
            routers=(*self._learning.routes(self._feedback), cache_routes(self._cache_admin())),
            ask_workers=self._company.ask,
            listing=self._listing,
            facts=lambda: {**facts, **processes(self._place.state.read_status())},
            holder_of=self._holder,
            nodes=None if self._nodes is None else self._nodes.others,
        )

    def _cache_admin(self) -> CacheAdmin:
        return CacheAdmin(
            catalogue=self._keeping.catalogue,
            bounds=self._keeping.bounds,
            shows_texts=self._settings.content == "full",
            index_stats=self._owner.stats if self._settings.uses_semantic_cache else None,
            remove_rows=self._keeping.remove_rows,
        )

    def _holder(self, tenant: str) -> Holder | None:
        key = self._limits.book.by_id(tenant)
        return None if key is None else Holder(name=key.name, team=key.team, last_four=key.last_four)


def _located(model: str) -> Path:
    path = model_store.locate(model)
    if path is None:
        raise StartRefused(str(model_store.missing(model)))
    return path
