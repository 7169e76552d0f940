// Drives an API server with the official Node client, unmodified, and prints what it sees as JSON lines.
//
// Set-up: npm ci; then node client.js SUBCOMMAND FLAGS.
//
//   informer  the package's informer of ConfigMaps, started again after each error, as its examples do. A line on standard
//             input prints the store, its end ends the program.
//   upload    create a ConfigMap of 1 MB and read it again.
//
// Flags: --kubeconfig FILE --namespace NAMESPACE, --selector LABELS for informer, --name NAME --team TEAM for upload.

import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

import { CoreV1Api, KubeConfig, makeInformer } from "@kubernetes/client-node";

const MEGABYTE = 1_000_000;
/** Milliseconds until the informer is started again. */
const AGAIN = 200;

const { positionals, values: flags } = parseArgs({
  allowPositionals: true,
  options: Object.fromEntries(
    ["kubeconfig", "namespace", "selector", "name", "team"].map((flag) => [flag, { type: "string" }]),
  ),
});
const config = new KubeConfig();
config.loadFromFile(flags.kubeconfig);
const api = config.makeApiClient(CoreV1Api);

switch (positionals[0]) {
  case "informer":
    await informer();
    break;
  case "upload":
    await upload();
    break;
  default:
    throw new Error(`no subcommand ${positionals[0]}`);
}

async function informer() {
  const list = () => {
    event("list");
    return api.listNamespacedConfigMap({ namespace: flags.namespace, labelSelector: flags.selector });
  };
  const path = `/api/v1/namespaces/${flags.namespace}/configmaps`;
  const informer = makeInformer(config, path, list, flags.selector);
  informer.on("add", (map) => wire("ADDED", map));
  informer.on("update", (map) => wire("MODIFIED", map));
  informer.on("delete", (map) => wire("DELETED", map));
  informer.on("error", (error) => {
    event("watch-error", { error: String(error) });
    setTimeout(() => informer.start(), AGAIN);
  });
  await informer.start();
  event("synced");
  for await (const _ of createInterface({ input: process.stdin })) {
    event("store", { objects: informer.list().map(shown) });
  }
  process.exit(0);
}

async function upload() {
  const { name, namespace, team } = flags;
  const body = { metadata: { name, labels: { team } }, data: { large: "x".repeat(MEGABYTE) } };
  await api.createNamespacedConfigMap({ namespace, body });
  const stored = await api.readNamespacedConfigMap({ name, namespace });
  event("uploaded", { bytes: stored.data.large.length });
}

function shown(map) {
  return { name: map.metadata.name, rv: map.metadata.resourceVersion };
}

function wire(type, map) {
  event("wire", { type, object: shown(map) });
}

function event(name, fields = {}) {
  console.log(JSON.stringify({ event: name, ...fields }));
}
