//! Operators at work: what each must hold in the end.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use ctrlmesh_e2e::{Shards, until};
use serde_json::Value;

use crate::node::{
    admin,
    records::{Held, Key, Reader, Store, store, team},
};

/// Longer than anything takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// Each team with the shard that owns it.
pub(crate) type Owners = BTreeMap<&'static str, &'static str>;

/// Waits until every Widget is handled by its shard, nothing is left of deleted ones, and each
/// pod holds just the last versions of what its shard owns. Shards without a pod are not waited
/// for.
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
