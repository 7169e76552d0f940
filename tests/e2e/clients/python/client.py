#!/usr/bin/env python3
"""Drives an API server with the official Python client, unmodified, and prints what it sees as JSON lines.

Set-up: python3 -m venv DIR && DIR/bin/pip install -r requirements.txt; then DIR/bin/python client.py SUBCOMMAND --help.

  listwatch  list, then watch from the list's resourceVersion; list again after a 410. A line on standard input prints
             the store, its end (or SIGTERM) ends the program.
  elect      leader election by kubernetes.leaderelection.
  exec       run a command in a pod over WebSocket.
  upload     create a ConfigMap of 1 MB and read it again.

Exit codes: 0 done, 1 failed (the last line is an error event), 2 usage.
"""

import argparse
import datetime
import hashlib
import json
import os
import signal
import sys
import threading
import urllib.parse

import urllib3
from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
from kubernetes.stream import stream

MEGABYTE = 1_000_000
PRINTING = threading.Lock()


def main():
    arguments = parse()
    connect(arguments)
    try:
        arguments.run(arguments)
    except Exception as error:  # every failure is told in the same form
        event("error", error=f"{type(error).__name__}: {error}")
        sys.exit(1)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG"), help="a pod's own configuration when absent")
    common.add_argument("--server", help="URL of the API server, instead of the configured one")
    common.add_argument("--ca", help="file with the CA certificates to trust, instead of the configured ones")
    common.add_argument("--token-file", help="file with the bearer token, instead of the configured credentials")
    common.add_argument("--namespace", default="default")
    commands = parser.add_subparsers(required=True, metavar="SUBCOMMAND")

    command = commands.add_parser("listwatch", parents=[common])
    command.add_argument("--resource", default="v1/configmaps", help="v1/configmaps, or group/version/plural of a custom resource")
    command.add_argument("--selector", default="", help="label selector")
    command.add_argument("--page-size", type=int, default=500, help="limit of a page of the list")
    command.add_argument("--all-namespaces", action="store_true")
    command.add_argument("--field-selector", default="", help="field selector")
    command.add_argument("--shard-selector", default="", help="shard selector (KEP-5866)")
    command.add_argument("--content", action="store_true", help="print what the objects hold, and a digest of them")
    command.add_argument("--persist", action="store_true", help="go on after every error, as a controller must")
    command.add_argument("--without-bookmarks", action="store_true", help="as the package watches by itself")
    command.add_argument("--from", dest="start", help="resourceVersion to watch from, instead of a first list")
    command.set_defaults(run=list_and_watch)

    command = commands.add_parser("elect", parents=[common])
    command.add_argument("--lock", default="elect", help="name of the lock")
    command.add_argument("--lock-kind", choices=["lease", "configmap"], default="lease")
    command.add_argument("--identity", required=True)
    command.add_argument("--seconds", type=float, default=10, help="how long to take part")
    command.set_defaults(run=elect)

    command = commands.add_parser("exec", parents=[common])
    command.add_argument("--pod", required=True)
    command.add_argument("--container")
    command.add_argument("command", nargs="+")
    command.set_defaults(run=execute)

    command = commands.add_parser("upload", parents=[common])
    command.add_argument("--name", required=True)
    command.add_argument("--team", required=True, help="the ConfigMap's label team")
    command.set_defaults(run=upload)
    return parser.parse_args()


def connect(arguments):
    """Makes the configuration of the flags the default one of the package, as the package's own loaders do."""
    settings = client.Configuration()
    if arguments.kubeconfig:
        config.load_kube_config(arguments.kubeconfig, client_configuration=settings)
    elif os.environ.get("KUBERNETES_SERVICE_HOST"):
        config.load_incluster_config(client_configuration=settings)
    elif not arguments.server:
        sys.exit("no --kubeconfig, no --server, and this is no pod")
    if arguments.server:
        settings.host = arguments.server
    if arguments.ca:
        settings.ssl_ca_cert = arguments.ca
    if arguments.token_file:
        with open(arguments.token_file, encoding="ascii") as file:
            settings.api_key = {"authorization": "Bearer " + file.read().strip()}
        settings.cert_file = settings.key_file = settings.refresh_api_key_hook = None
    client.Configuration.set_default(settings)


def list_and_watch(arguments):
    store = Store(arguments.content)
    call = collection(arguments)
    if arguments.shard_selector:
        shard_every_request(arguments.shard_selector)
    threading.Thread(target=follow_standard_input, args=(store,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: store.end())
    version = arguments.start
    while True:
        try:
            version = version or store.relist(call, arguments.page_size)
        except (ApiException, urllib3.exceptions.HTTPError) as error:
            go_on_after(error, arguments)
            continue
        stream_of_events = watch.Watch()
        event("watch", **{"from": version})
        store.count("watches")
        try:
            bookmarks = {} if arguments.without_bookmarks else {"allow_watch_bookmarks": True}
            for told in stream_of_events.stream(call, resource_version=version, **bookmarks):
                version = store.apply(told)
        except ApiException as error:
            store.count("watch_errors")
            event("watch-error", code=error.status, error=error.reason)
            if error.status == 410:
                version = None
            else:
                go_on_after(error, arguments)
        except urllib3.exceptions.HTTPError as error:
            go_on_after(error, arguments)


def go_on_after(error, arguments):
    """The package leaves it to its user what becomes of a request that failed."""
    if not arguments.persist:
        raise error
    event("failed", error=f"{type(error).__name__}: {error}")
    threading.Event().wait(0.2)


def shard_every_request(selector):
    """Adds the shard selector behind the package, which does not know it for custom resources."""
    send = client.rest.RESTClientObject.request

    def sharded(self, method, url, *rest, **options):
        separator = "&" if "?" in url else "?"
        return send(self, method, f"{url}{separator}shardSelector={urllib.parse.quote(selector)}", *rest, **options)

    client.rest.RESTClientObject.request = sharded


def collection(arguments):
    """The list call of the resource, which is its watch call too."""
    where = [] if arguments.all_namespaces else [arguments.namespace]
    selectors = {"label_selector": arguments.selector}
    if arguments.field_selector:
        selectors["field_selector"] = arguments.field_selector
    if arguments.resource == "v1/configmaps":
        api = client.CoreV1Api()
        listed = api.list_namespaced_config_map if where else api.list_config_map_for_all_namespaces

        # The watch learns by the parameter `watch`, and the type from the name in this docstring.
        def call(**options):
            """:rtype: V1ConfigMapList"""
            return listed(*where, **selectors, **options)

        return call
    group, version, plural = arguments.resource.split("/")
    api = client.CustomObjectsApi()
    listed_custom = api.list_namespaced_custom_object if where else api.list_custom_object_for_all_namespaces

    def call_custom(**options):
        """:rtype: object"""
        return listed_custom(group, version, *where, plural, **selectors, **options)

    return call_custom


class Store:
    """The objects by uid, as a client keeps them that goes by resourceVersion."""

    def __init__(self, has_content):
        self.shown = shown_whole if has_content else shown
        self.has_content = has_content
        self.lock = threading.Lock()
        self.objects = {}
        self.counts = {"lists": 0, "watches": 0, "watch_errors": 0, "events": 0}

    def count(self, name):
        with self.lock:
            self.counts[name] += 1

    def relist(self, call, page_size):
        """Replaces all objects, page by page, and returns the list's resourceVersion."""
        found, token = {}, None
        while True:
            options = {"limit": page_size, **({"_continue": token} if token else {})}
            if self.has_content:
                # As the server wrote it, so that a list and an event can be compared.
                page = json.loads(call(_preload_content=False, **options).data)
            else:
                page = plain(call(**options))
            found.update((item["metadata"]["uid"], item) for item in page["items"])
            version, token = page["metadata"]["resourceVersion"], page["metadata"].get("continue")
            if not token:
                break
        with self.lock:
            self.objects = found
            self.counts["lists"] += 1
        objects = {"objects": [self.shown(item) for item in found.values()]} if self.has_content else {}
        event("list", rv=version, items=len(found), **objects)
        return version

    def apply(self, told):
        """Takes one watch event in and returns the resourceVersion that it brings the watch to."""
        kind, raw = told["type"], told["raw_object"]
        if kind != "BOOKMARK":
            with self.lock:
                self.counts["events"] += 1
                if kind == "DELETED":
                    self.objects.pop(raw["metadata"]["uid"], None)
                else:
                    self.objects[raw["metadata"]["uid"]] = raw
        event("wire", type=kind, object=self.shown(raw))
        return raw["metadata"]["resourceVersion"]

    def print(self, name):
        with self.lock:
            objects = sorted((self.shown(item) for item in self.objects.values()), key=lambda item: (item["ns"], item["name"]))
            counts = {"count_" + key: value for key, value in self.counts.items()}
        event(name, objects=objects, **counts)

    def end(self):
        self.print("summary")
        # A thread is blocked in a read of the stream, and cannot be told to end.
        os._exit(0)


def follow_standard_input(store):
    for _ in sys.stdin:
        store.print("store")
    store.end()


def plain(answer):
    """The answer as the API server's own JSON, for models and for custom resources alike."""
    return client.ApiClient().sanitize_for_serialization(answer)


def shown(item):
    metadata = item["metadata"]
    return {
        "uid": metadata.get("uid", ""),
        "rv": metadata["resourceVersion"],
        "ns": metadata.get("namespace", ""),
        "name": metadata.get("name", ""),
        "labels": metadata.get("labels"),
    }


def shown_whole(item):
    """What is shown, with the object's data or spec, and a digest of all of it but its type."""
    whole = {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
    return {**shown(item), "data": item.get("data", item.get("spec")), "digest": digest}


def elect(arguments):
    kind = {"lease": LeaseLock, "configmap": ConfigMapLock}[arguments.lock_kind]
    acquired = threading.Event()

    class Reported(kind):
        """The package's lock, which tells of its writes."""

        def create(self, name, namespace, election_record):
            done = super().create(name, namespace, election_record)
            event("created" if done else "refused", holder=election_record.holder_identity)
            return done

        def update(self, name, namespace, updated_record):
            done = super().update(name, namespace, updated_record)
            event("renewed" if done else "refused", holder=updated_record.holder_identity)
            return done

    def started():
        acquired.set()
        event("acquired", identity=arguments.identity)

    election = leaderelection.LeaderElection(
        electionconfig.Config(
            Reported(arguments.lock, arguments.namespace, arguments.identity),
            lease_duration=4,
            renew_deadline=3,
            retry_period=1,
            onstarted_leading=started,
            onstopped_leading=lambda: event("lost", identity=arguments.identity),
        )
    )
    candidate = threading.Thread(target=election.run, daemon=True)
    candidate.start()
    candidate.join(arguments.seconds)
    if not acquired.is_set():
        raise RuntimeError("never acquired the lock")
    event("end", leading=candidate.is_alive())


def execute(arguments):
    options = {"container": arguments.container} if arguments.container else {}
    session = stream(
        client.CoreV1Api().connect_get_namespaced_pod_exec,
        arguments.pod,
        arguments.namespace,
        command=arguments.command,
        stdin=False,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
        **options,
    )
    session.run_forever(timeout=60)
    event("exec", transport="websocket", exitCode=session.returncode, stdout=session.read_stdout(timeout=1), stderr=session.read_stderr(timeout=1))


def upload(arguments):
    api = client.CoreV1Api()
    metadata = client.V1ObjectMeta(name=arguments.name, labels={"team": arguments.team})
    body = client.V1ConfigMap(metadata=metadata, data={"large": "x" * MEGABYTE})
    api.create_namespaced_config_map(arguments.namespace, body)
    stored = api.read_namespaced_config_map(arguments.name, arguments.namespace)
    event("uploaded", bytes=len(stored.data["large"]))


def event(name, **fields):
    line = json.dumps({"event": name, "time": datetime.datetime.now(datetime.timezone.utc).isoformat(), **fields})
    with PRINTING:
        print(line, flush=True)


if __name__ == "__main__":
    main()
