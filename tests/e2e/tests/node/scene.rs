//! Operators at work: the node of the tests that take turns, and what each must hold in the end.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use ctrlmesh_e2e::{AuditEntry, Binaries, Families, Shards, until};
use serde_json::Value;

use crate::node::{
    admin,
    records::{Held, Key, Reader, Store, store, team},
};

/// Longer than anything takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// Each team with the shard that owns it.
pub(crate) type Owners = BTreeMap<&'static str, &'static str>;

/// The scene on a node with IPv4 that several tests use, one after the other: operators see all
/// namespaces. It ends with the last test that waits for it.
pub(crate) struct Turn {
    node: Arc<Reused>,
    /// The number of entries of the audit log that are of earlier tests.
    earlier: usize,
    _turn: MutexGuard<'static, ()>,
}

struct Reused {
    shards: Shards,
    is_used: AtomicBool,
}

impl Turn {
    /// Waits for the turn. The scene is as [`Shards::start`] leaves it.
    pub(crate) fn wait() -> Result<Self> {
        static TURNS: Mutex<()> = Mutex::new(());
        // Before the wait, so that the node outlives the test before.
        let node = shared_node()?;
        let turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        if node.is_used.swap(true, Ordering::Relaxed) {
            node.shards.clear()?;
        }
        let earlier = node.shards.node().api().audit().entries()?.len();
        Ok(Self { node, earlier, _turn: turn })
    }

    /// The audit log of this test.
    pub(crate) fn entries(&self) -> Result<Vec<AuditEntry>> {
        Ok(self.node().api().audit().entries()?.split_off(self.earlier))
    }
}

impl Deref for Turn {
    type Target = Shards;

    fn deref(&self) -> &Shards {
        &self.node.shards
    }
}

fn shared_node() -> Result<Arc<Reused>> {
    static SHARED: Mutex<Weak<Reused>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(node) = shared.upgrade() {
        return Ok(node);
    }
    let shards = Shards::start(Binaries::from_env()?, Families::Ipv4)?;
    let node = Arc::new(Reused { shards, is_used: AtomicBool::new(false) });
    *shared = Arc::downgrade(&node);
    Ok(node)
}

/// Waits until every Widget is handled by its shard and nothing is left of deleted ones. Each pod
/// then holds just the last versions of the objects of its shard. Shards without a pod are not
/// waited for.
pub(crate) fn settle(shards: &Shards, readers: &[Reader], owners: &Owners) -> Result<()> {
    let client = shards.node().api().client();
    let mut why = String::new();
    let mut look = || {
        let widgets = admin::items(client, "widgets")?;
        let config_maps = admin::items(client, "configmaps")?;
        let owner = |object: &Value| -> Option<&str> {
            owners.get(&*team(&object["metadata"]["labels"])?).copied()
        };
        for widget in &widgets {
            let reader = readers.iter().find(|reader| Some(&*reader.pod.shard) == owner(widget));
            if let Some(reader) = reader
                && !is_handled(widget, &reader.pod.name, &config_maps)
            {
                why = format!("{} has not handled {widget}", reader.pod.name);
                return Ok(None);
            }
        }
        if let Some(left) = config_maps.iter().find(|map| is_left_over(map, &widgets)) {
            why = format!("its Widget is gone: {left}");
            return Ok(None);
        }
        for reader in readers {
            let of = |resource, all: &[Value]| -> Result<Store> {
                let own = all.iter().filter(|object| owner(object) == Some(&*reader.pod.shard));
                own.map(|object| held(resource, object)).collect()
            };
            let mut expected = of("widgets", &widgets)?;
            expected.extend(of("configmaps", &config_maps)?);
            let holds = store(&reader.reads()?);
            if holds != expected {
                why = difference(&reader.pod.name, &holds, &expected);
                return Ok(None);
            }
        }
        Ok(Some(()))
    };
    until("all is handled and known", LIMIT, &mut look).with_context(|| why.clone())
}

fn is_handled(widget: &Value, pod: &str, config_maps: &[Value]) -> bool {
    let (meta, size) = (&widget["metadata"], &widget["spec"]["size"]);
    let status = &widget["status"];
    let data = format!("{}-data", meta["name"].as_str().unwrap_or_default());
    let expected = size.to_string();
    let has_data = config_maps.iter().any(|map| {
        map["metadata"]["name"] == *data
            && map["metadata"]["labels"] == meta["labels"]
            && map["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]
            && map["data"]["size"] == *expected
    });
    // The operator leaves a zero out.
    let told = status["size"].as_u64().unwrap_or_default();
    let is_seen = status["observedGeneration"] == meta["generation"] && Some(told) == size.as_u64();
    has_data && is_seen && status["handledBy"] == pod
}

fn is_left_over(config_map: &Value, widgets: &[Value]) -> bool {
    let owner = &config_map["metadata"]["ownerReferences"][0]["uid"];
    !owner.is_null() && widgets.iter().all(|widget| widget["metadata"]["uid"] != *owner)
}

fn held(resource: &'static str, object: &Value) -> Result<(Key, Held)> {
    let meta = &object["metadata"];
    let text = |field: &str| meta[field].as_str().context("an object has a name, uid and version");
    let version = text("resourceVersion")?.parse()?;
    let key = (resource, text("name")?.to_owned());
    Ok((key, (text("uid")?.to_owned(), version, team(&meta["labels"]))))
}

fn difference(pod: &str, holds: &Store, expected: &Store) -> String {
    let more: Vec<_> = holds.iter().filter(|(key, is)| expected.get(*key) != Some(is)).collect();
    let less: Vec<_> = expected.iter().filter(|(key, is)| holds.get(*key) != Some(is)).collect();
    format!("{pod} holds {more:?} where it should hold {less:?}")
}
