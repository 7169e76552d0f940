//! Shards without labels. The oracle is the API server's own sharding (KEP-5866): the proxy's
//! filter must show what it would.

use std::{collections::BTreeSet, thread};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditEntry, Program, Proxy};
use serde_json::{Value, json};

use super::{KINDS, Store, content, expect_store};
use crate::direct::bed::{Bed, LIMIT, Way, names, output, sharding_config};

/// The cut between the two shards. Numbered names hash close together, and it is among them.
const CUT: &str = "0xc2efb30000000000";
const NAMESPACES: usize = 12;

/// One of the two shards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Low,
    High,
}

impl Half {
    fn policy(self, of: &str) -> String {
        let range = match self {
            Self::Low => json!({ "from": "0x0000000000000000", "to": CUT }),
            Self::High => json!({ "from": CUT, "to": "" }),
        };
        let limit = json!({
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
            "hash": { "of": of, "ranges": [range] },
            "clusterScoped": "Exclude",
        });
        sharding_config("mine", &[limit]).to_string()
    }

    /// The API server's own list of this half.
    fn native(self, bed: &Bed, of: &str) -> Result<Value> {
        let (from, to) = match self {
            Self::Low => ("0x0000000000000000", CUT),
            Self::High => (CUT, "0x10000000000000000"),
        };
        let selector = format!("shardRange(object.metadata.{of},'{from}','{to}')");
        let selector: String = selector
            .bytes()
            .map(|byte| match byte {
                b'(' | b')' | b'\'' | b',' => format!("%{byte:02X}"),
                byte => char::from(byte).to_string(),
            })
            .collect();
        let list: Value = bed
            .api
            .client()
            .get(&format!("/api/v1/configmaps?shardSelector={selector}"))?
            .json()?;
        ensure!(list["metadata"]["shardInfo"].is_object(), "the server shards: {list}");
        Ok(list)
    }

    fn store(self, bed: &Bed, of: &str) -> Result<Store> {
        let list = self.native(bed, of)?;
        let items = list["items"].as_array().context("items")?;
        let uid = |meta: &Value| meta["uid"].as_str().unwrap_or_default().to_owned();
        let entry = |item: &Value| {
            let meta = &item["metadata"];
            let object = json!({ "rv": meta["resourceVersion"], "labels": meta["labels"] });
            (uid(meta), content(&object))
        };
        Ok(items.iter().map(entry).collect())
    }
}

/// Random writes in numbered namespaces; names are used again.
struct Writes {
    random: fastrand::Rng,
    living: BTreeSet<String>,
}

impl Writes {
    fn new(bed: &Bed, test: &str) -> Result<Self> {
        let seed = fastrand::u64(..);
        println!("{test}: seed {seed}");
        for number in 0..NAMESPACES {
            let namespace = json!({ "metadata": { "name": format!("tenant-{number}") } });
            bed.api.client().post("/api/v1/namespaces", &namespace)?.json()?;
        }
        Ok(Self { random: fastrand::Rng::with_seed(seed), living: BTreeSet::new() })
    }

    /// So many steps, and a write of each object that is left: without it a store could become the
    /// last one early and once more.
    fn go_on(&mut self, bed: &Bed, steps: usize) -> Result<()> {
        let client = bed.api.client();
        for _ in 0..steps {
            let number = self.random.usize(..NAMESPACES);
            let name = format!("object-{}", self.random.usize(..6));
            let all = format!("/api/v1/namespaces/tenant-{number}/configmaps");
            let path = format!("{all}/{name}");
            if !self.living.contains(&path) {
                client.post(&all, &json!({ "metadata": { "name": name } }))?.json()?;
                self.living.insert(path);
            } else if self.random.bool() {
                touch(bed, &path, self.random.u64(..))?;
            } else {
                client.delete(&path)?.json()?;
                self.living.remove(&path);
            }
        }
        self.living.iter().try_for_each(|path| touch(bed, path, self.random.u64(..)))
    }
}

/// Gives an object a label that it did not have.
fn touch(bed: &Bed, path: &str, with: u64) -> Result<()> {
    let patch = json!({ "metadata": { "labels": { "touched": with.to_string() } } }).to_string();
    let kind = "application/merge-patch+json";
    bed.api.client().request("PATCH", path, kind, patch.into_bytes())?.json().map(drop)
}

fn two_shards_without_a_label(of: &str) -> Result<()> {
    let bed = Bed::with_sharding_server(&format!("by-{of}"))?;
    let mut writes = Writes::new(&bed, of)?;
    writes.go_on(&bed, 40)?;
    let halves = [Half::Low, Half::High];
    // One of them judges alone, the other tells the API server too.
    let proxies = halves
        .map(|half| {
            let pushdown = if half == Half::Low { "off" } else { "auto" };
            let builder = Proxy::builder("mine", &half.policy(of));
            builder.flag(&format!("--pushdown={pushdown}")).start(&bed.api)
        })
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let mut informers: Vec<(Half, &str, Program)> = Vec::new();
    for (half, proxy) in halves.into_iter().zip(&proxies) {
        for (kind, args) in KINDS {
            let args = [args, &["--all-namespaces"]].concat();
            let informer = bed.clients(&Way::Through(proxy), "informer", &args)?;
            informers.push((half, kind, informer));
        }
    }
    for round in 0..3 {
        writes.go_on(&bed, 40)?;
        let stores = [Half::Low.store(&bed, of)?, Half::High.store(&bed, of)?];
        let sizes = stores.each_ref().map(Store::len);
        let all = names(&bed.api.client().get("/api/v1/configmaps")?.json()?).len();
        println!("{of}: round {round}: {sizes:?} of {all} objects");
        ensure!(sizes.iter().all(|size| *size > 0), "both shards have something: {sizes:?}");
        ensure!(sizes.iter().sum::<usize>() == all, "each object in one");
        for (half, kind, informer) in &mut informers {
            let expected = &stores[usize::from(*half == Half::High)];
            expect_store(&format!("{of}, {kind}, round {round}"), informer, expected)?;
        }
    }
    lists_of_every_encoding(&bed, of, &proxies)?;
    for (proxy, (pushed, not)) in proxies.iter().zip([("none", "hash"), ("hash", "none")]) {
        let count = |how| proxy.metric(&format!("ctrlmesh_pushdown_total{{how=\"{how}\"}}"));
        ensure!(count(pushed)? > 0.0 && count(not)? == 0.0, "{pushed}, and not {not}");
    }
    for (_, kind, informer) in informers {
        let summary = informer.finish(LIMIT)?.pop().context("a summary")?;
        ensure!(summary["count_watchErrors"] == 0, "{kind}: {summary}");
    }
    Ok(())
}

/// One list in each encoding, and as a person sees it, whole and in pages.
fn lists_of_every_encoding(bed: &Bed, of: &str, proxies: &[Proxy]) -> Result<()> {
    for (half, proxy) in [Half::Low, Half::High].into_iter().zip(proxies) {
        let expected = names(&half.native(bed, of)?);
        let way = Way::Through(proxy);
        for target in ["/api/v1/configmaps", "/api/v1/configmaps?limit=500"] {
            for accept in [
                "application/json",
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            ] {
                let mut curl = bed.curl(&way, target);
                let list =
                    output(curl.arg("--compressed").args(["-H", &format!("Accept: {accept}")]))?;
                ensure!(names(&serde_json::from_slice(&list)?) == expected, "{accept}");
            }
        }
        let kubectl = proxy.kubectl(&bed.api, bed.token())?;
        let table = kubectl.run(&["get", "configmaps", "-A", "--no-headers", "--chunk-size=7"])?;
        let mut seen: Vec<_> =
            table.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        seen.sort_unstable();
        ensure!(seen == expected, "kubectl: {seen:?} where {expected:?} is right");
    }
    Ok(())
}

#[test]
fn t49_t52_shards_by_namespace_are_the_api_servers_own() -> Result<()> {
    two_shards_without_a_label("namespace")
}

#[test]
fn t49_t52_shards_by_uid_are_the_api_servers_own() -> Result<()> {
    two_shards_without_a_label("uid")
}

#[test]
fn the_api_server_refuses_what_is_no_boundary() -> Result<()> {
    let bed = Bed::new("no-boundary")?;
    bed.install_crds()?;
    for (limit, said) in [
        (
            json!({ "hash": { "of": "uid", "function": "Fnv1aMixed", "ranges": [] } }),
            "uids need no mixing",
        ),
        (json!({ "hash": { "of": "name", "ranges": [] } }), "hash.of"),
        (json!({ "hash": { "ranges": [{ "from": CUT, "to": "" }] } }), "hash.of"),
        (
            json!({ "hash": { "of": "uid", "ranges": [{ "from": "0x0", "to": "" }] } }),
            "ranges[0].from",
        ),
        (json!({ "hash": { "of": "uid", "ranges": [{ "from": CUT }] } }), "ranges[0].to"),
        (json!({ "clusterScoped": "Both" }), "clusterScoped"),
        (json!({ "namespaces": { "pattern": "a".repeat(1025) } }), "namespaces.pattern"),
        (json!({ "namespaces": {}, "clusterScoped": "Exclude" }), "namespaces: Invalid value"),
        (json!({ "namespaces": { "names": [] }, "clusterScoped": "Exclude" }), "is empty"),
        (json!({ "namespaces": { "names": ["Team"] } }), "namespaces.names[0]"),
        (json!({ "namespaces": { "names": ["a.b"] } }), "namespaces.names[0]"),
        (
            json!({ "namespaces": { "pattern": "a(" }, "clusterScoped": "Exclude" }),
            "missing closing )",
        ),
        (
            json!({ "namespaces": { "selector": { "matchLabels": [] } } }),
            "namespaces.selector.matchLabels",
        ),
        (json!({ "namespaces": { "names": ["a"] } }), "limits[0].clusterScoped"),
        (json!({ "namespaces": { "selector": {} } }), "limits[0].clusterScoped"),
        (
            json!({ "hash": { "of": "namespace", "ranges": [{ "from": CUT, "to": "" }] } }),
            "limits[0].clusterScoped",
        ),
        (
            json!({ "hash": { "of": "uid", "ranges": [{ "from": CUT, "to": CUT }] } }),
            "hash.ranges[0]",
        ),
        (
            json!({ "hash": { "of": "uid", "ranges": [
                { "from": CUT, "to": "" }, { "from": "0x0000000000000000", "to": "0xc2efb30000000001" },
            ] } }),
            "overlap",
        ),
    ] {
        let config = json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "metadata": { "name": "bad" },
            "spec": { "selector": { "matchLabels": { "a": "b" } }, "limits": [limit] },
        });
        let path = "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/no-boundary/shardingconfigs";
        let answer = bed.api.client().post(path, &config)?;
        let is_right = answer.status == 422 && answer.text.contains(said);
        ensure!(is_right, "{said}: {} {}", answer.status, answer.text);
    }
    Ok(())
}

#[test]
fn t56_deletecollection_touches_the_shards_own_versions_alone() -> Result<()> {
    let bed = Bed::with_sharding_server("deletes")?;
    let name = |at: usize| format!("object-{at}");
    for at in 0..60 {
        bed.config_map(&name(at), "team=a")?;
    }
    let own: BTreeSet<String> = Half::Low.store(&bed, "uid")?.into_keys().collect();
    let watch = bed.clients(&Way::Straight, "informer", &["--wire"])?;
    watch.wait_for(LIMIT, |line| line["event"] == "synced")?;
    let proxy = Proxy::builder("mine", &Half::Low.policy("uid")).start(&bed.api)?;
    let client = proxy.client(bed.token())?;
    let target = format!("{}?labelSelector=team%3Da&limit=7&continue=", bed.path("configmaps"));
    thread::scope(|scope| {
        // While it deletes, every third object becomes someone else's.
        let relabels = scope.spawn(|| {
            for at in (0..60).step_by(3).rev() {
                // The check below finds out which request was quicker.
                drop(bed.relabel(&name(at), Some("b")));
            }
        });
        let mut token = String::new();
        loop {
            let page = format!("{target}{token}");
            let answer = client.request("DELETE", &page, "application/json", Vec::new())?;
            ensure!(answer.status == 200 && answer.text.contains("Success"), "{}", answer.text);
            match answer.json()?["metadata"]["continue"].as_str() {
                Some(next) => next.clone_into(&mut token),
                None => break,
            }
        }
        ensure!(relabels.join().is_ok());
        Ok(())
    })?;

    let left = bed.api.client().get(&bed.path("configmaps"))?.json()?;
    let uid = |meta: &Value| meta["uid"].as_str().unwrap_or_default().to_owned();
    let left = left["items"].as_array().context("items")?;
    for item in left {
        let is_own = own.contains(&uid(&item["metadata"]));
        let team = &item["metadata"]["labels"]["team"];
        ensure!(!is_own || team == "b", "{item} is the shard's, and is there still");
    }
    let is_deleted = |line: &&Value| line["event"] == "wire" && line["type"] == "DELETED";
    let deleted = watch.wait_until(LIMIT, |lines| {
        let deleted: Vec<_> = lines.iter().filter(is_deleted).cloned().collect();
        (deleted.len() + left.len() == 60).then_some(deleted)
    })?;
    for line in &deleted {
        let object = &line["object"];
        ensure!(own.contains(&uid(object)), "{object} was deleted, and is of the other shard");
        ensure!(object["labels"]["team"] == "a", "{object} was deleted, and is of the other team");
    }
    println!("deletes: {} deleted, {} left", deleted.len(), left.len());
    ensure!(!deleted.is_empty());
    let verb = |entry: &AuditEntry| entry.verb == "deletecollection";
    ensure!(!bed.api.audit().entries()?.iter().any(verb), "the API server deleted none by itself");
    Ok(())
}
