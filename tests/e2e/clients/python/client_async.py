#!/usr/bin/env python3
"""Drives an API server with kubernetes_asyncio, unmodified, and prints what it sees as JSON lines.

  listwatch  list, then watch without bookmarks from the list's resourceVersion; list again after a 410, resume from the
             last event after any other end. A line on standard input prints the store, its end ends the program.
  elect      leader election by kubernetes_asyncio.leaderelection, until standard input ends.
  upload     create a ConfigMap of 1 MB and read it again.
"""

import argparse
import asyncio
import json
import sys

import aiohttp
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.leaderelection import electionconfig, leaderelection
from kubernetes_asyncio.leaderelection.resourcelock.leaselock import LeaseLock

MEGABYTE = 1_000_000
# Seconds until a request that failed is sent again: the package leaves that to its user.
AGAIN = 0.2


async def main():
    arguments = parse()
    settings = client.Configuration()
    await config.load_kube_config(arguments.kubeconfig, client_configuration=settings)
    async with client.ApiClient(settings) as connection:
        await arguments.run(client.CoreV1Api(connection), arguments)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--kubeconfig", required=True)
    common.add_argument("--namespace", required=True)
    commands = parser.add_subparsers(required=True, metavar="SUBCOMMAND")

    command = commands.add_parser("listwatch", parents=[common])
    command.add_argument("--selector", default="", help="label selector")
    command.set_defaults(run=list_and_watch)

    command = commands.add_parser("elect", parents=[common])
    command.add_argument("--lock", required=True)
    command.add_argument("--identity", required=True)
    command.set_defaults(run=elect)

    command = commands.add_parser("upload", parents=[common])
    command.add_argument("--name", required=True)
    command.add_argument("--team", required=True)
    command.set_defaults(run=upload)
    return parser.parse_args()


async def list_and_watch(api, arguments):
    store = {}
    following = asyncio.create_task(follow(api, arguments, store))
    async for _ in standard_input():
        event("store", objects=list(store.values()))
    following.cancel()


async def follow(api, arguments, store):
    version = None
    while True:
        try:
            if version is None:
                version = await relist(api, arguments, store)
            version = await follow_one_watch(api, arguments, store, version)
        except ApiException as error:
            event("watch-error", code=error.status)
            version = None if error.status == 410 else version
        except (aiohttp.ClientError, TimeoutError) as error:
            event("failed", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(AGAIN)


async def relist(api, arguments, store):
    listed = await api.list_namespaced_config_map(arguments.namespace, label_selector=arguments.selector)
    store.clear()
    for item in listed.items:
        store[item.metadata.name] = {"name": item.metadata.name, "rv": item.metadata.resource_version}
    event("list", objects=list(store.values()))
    return listed.metadata.resource_version


async def follow_one_watch(api, arguments, store, version):
    options = {"label_selector": arguments.selector, "resource_version": version}
    async with watch.Watch() as stream:
        try:
            async for told in stream.stream(api.list_namespaced_config_map, arguments.namespace, **options):
                metadata = told["raw_object"]["metadata"]
                shown = {"name": metadata["name"], "rv": metadata["resourceVersion"]}
                if told["type"] == "DELETED":
                    store.pop(shown["name"], None)
                else:
                    store[shown["name"]] = shown
                event("wire", type=told["type"], object=shown)
                version = metadata["resourceVersion"]
        except (aiohttp.ClientError, TimeoutError) as error:
            event("failed", error=f"{type(error).__name__}: {error}")
    return version


async def elect(api, arguments):
    async def started():
        event("acquired", identity=arguments.identity)

    async def stopped():
        event("stopped")

    lock = LeaseLock(arguments.lock, arguments.namespace, arguments.identity, api.api_client)
    settings = electionconfig.Config(
        lock, lease_duration=4, renew_deadline=3, retry_period=1, onstarted_leading=started, onstopped_leading=stopped
    )
    election = asyncio.create_task(leaderelection.LeaderElection(settings).run())
    async for _ in standard_input():
        pass
    election.cancel()


async def upload(api, arguments):
    metadata = client.V1ObjectMeta(name=arguments.name, labels={"team": arguments.team})
    body = client.V1ConfigMap(metadata=metadata, data={"large": "x" * MEGABYTE})
    await api.create_namespaced_config_map(arguments.namespace, body)
    stored = await api.read_namespaced_config_map(arguments.name, arguments.namespace)
    event("uploaded", bytes=len(stored.data["large"]))


async def standard_input():
    """The lines of standard input."""
    while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        yield


def event(name, **fields):
    print(json.dumps({"event": name, **fields}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
