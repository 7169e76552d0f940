#!/usr/bin/env python3
"""An operator on kopf, unmodified: a timer and a daemon for each ConfigMap with the label `kopf=yes`.

Prints JSON lines: what its timers and daemons do for which object. Each run of a timer writes its object. SIGTERM
ends it.

Set-up: as client.py. Configuration: KUBECONFIG, and the namespace as the only argument.
"""

import asyncio
import datetime
import json
import logging
import os
import sys

import kopf
import yaml

INTERVAL = 0.25
OBJECTS = {"labels": {"kopf": "yes"}}


def event(kind, **fields):
    time = datetime.datetime.now(datetime.timezone.utc).timestamp()
    print(json.dumps({"event": kind, "at": time, **fields}), flush=True)


@kopf.on.startup()
def configure(settings, **_):
    # Its own annotations would be its only writes beside the finalizer.
    settings.posting.enabled = False
    settings.networking.error_backoffs = [0.1, 0.5, 1]


@kopf.on.login()
def login(**_):
    with open(os.environ["KUBECONFIG"], encoding="utf-8") as file:
        config = yaml.safe_load(file)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    token = user.get("token")
    if token is None:
        with open(user["tokenFile"], encoding="utf-8") as file:
            token = file.read().strip()
    return kopf.ConnectionInfo(
        server=cluster["server"],
        ca_path=cluster.get("certificate-authority"),
        ca_data=cluster.get("certificate-authority-data"),
        token=token,
    )


@kopf.timer("configmaps", interval=INTERVAL, **OBJECTS)
async def timer(name, patch, **_):
    event("timer", name=name)
    patch.metadata.annotations["e2e/ticked"] = datetime.datetime.now(datetime.timezone.utc).isoformat()


@kopf.daemon("configmaps", cancellation_timeout=1, **OBJECTS)
async def daemon(name, stopped, **_):
    event("daemon begins", name=name)
    while not await stopped.wait(INTERVAL):
        event("daemon", name=name)
    event("daemon ends", name=name)


@kopf.on.delete("configmaps", optional=True, **OBJECTS)
async def deleted(name, **_):
    event("deleted", name=name)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(kopf.operator(namespaces=[sys.argv[1]], standalone=True))
