//! A random history of writes, straight at the API server, and what lives after it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{ApiServer, Client};
use fastrand::Rng;
use serde_json::{Value, json};

use crate::oracle::{
    namespaces::Namespaces,
    plan::mixed,
    rule::{AT, Ranks, Rule, TIERS, Tenants, Traits, has_tier, tier_selector},
};

/// What an object may be called in its namespace.
const NAMES: usize = 5;
/// How many objects are made until one is in the shard. With a quarter of all uids in it, that so
/// many are not is less likely than a broken machine.
const TRIES: usize = 200;

/// The resources of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    ConfigMaps,
    Widgets,
}

/// What names an object.
pub(crate) type Key = (Resource, String, String);

/// An object that lives.
#[derive(Clone, Debug)]
pub(crate) struct Living {
    pub(crate) uid: String,
    pub(crate) rv: u64,
    pub(crate) tier: Option<&'static str>,
}

/// What a list shows and a delete takes: the rule, and what the client itself asks for.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) asked: Option<&'a BTreeSet<&'static str>>,
    /// The one namespace that the client asks for.
    pub(crate) inside: Option<&'a str>,
}

/// What the store of a client should be: by namespace and name, uid and version.
pub(crate) type Model = BTreeMap<(String, String), (String, u64)>;

/// An object that both informers see, as it was written last.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) rv: u64,
}

pub(crate) struct History<'a> {
    pub(super) api: &'a ApiServer,
    pub(super) tenants: &'a Tenants,
    pub(super) random: Rng,
    living: BTreeMap<Key, Living>,
    pub(super) namespaces: Namespaces,
    written: usize,
}

impl Resource {
    pub(crate) const ALL: [Self; 2] = [Self::ConfigMaps, Self::Widgets];

    /// The path of all of them, or of those of a namespace.
    pub(crate) fn path(self, namespace: Option<&str>) -> String {
        let (root, plural) = match self {
            Self::ConfigMaps => ("/api/v1", "configmaps"),
            Self::Widgets => ("/apis/demo.example.com/v1alpha1", "widgets"),
        };
        match namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{plural}"),
        }
    }
}

impl Seen<'_> {
    fn has(&self, namespace: &str, object: &Living, ranks: &Ranks) -> bool {
        let rank = ranks.get(namespace).map(String::as_str);
        let traits = Traits { namespace, rank, uid: &object.uid, tier: object.tier };
        self.rule.owns(traits)
            && has_tier(self.asked, object.tier)
            && self.inside.is_none_or(|inside| inside == namespace)
    }
}

impl<'a> History<'a> {
    /// With the namespaces of the seed, and nothing in them.
    pub(crate) fn new(api: &'a ApiServer, tenants: &'a Tenants, seed: u64) -> Result<Self> {
        let random = Rng::with_seed(mixed(seed.wrapping_add(1)));
        let (living, written) = (BTreeMap::new(), 0);
        let namespaces = Namespaces::default();
        let mut history = Self { api, tenants, random, living, namespaces, written };
        history.create_namespaces()?;
        Ok(history)
    }

    /// Some writes. A collection is deleted through the proxy, if one is given.
    pub(crate) fn go_on(&mut self, steps: usize, proxy: Option<(&Client, Seen<'_>)>) -> Result<()> {
        for _ in 0..steps {
            match (self.random.u8(..60), proxy) {
                (0, _) => self.end_namespace()?,
                (1, _) => self.revive()?,
                (2..=3, Some((client, seen))) => self.delete_collection(client, seen)?,
                (4..=5, _) => self.relabel_namespace()?,
                _ => self.write()?,
            }
        }
        Ok(())
    }

    /// What of the living is seen, with uid and version.
    pub(crate) fn seen(&self, resource: Resource, seen: Seen<'_>) -> Model {
        let of_resource = self.living.iter().filter(|((of, _, _), _)| *of == resource);
        of_resource
            .filter(|((_, namespace, _), object)| seen.has(namespace, object, self.ranks()))
            .map(|((_, namespace, name), object)| {
                ((namespace.clone(), name.clone()), (object.uid.clone(), object.rv))
            })
            .collect()
    }

    /// No object lives in the namespace.
    pub(super) fn forget(&mut self, namespace: &str) {
        self.living.retain(|(_, at, _), _| at != namespace);
    }

    pub(super) fn lives(&self, key: &Key) -> bool {
        self.living.contains_key(key)
    }

    /// Writes an object that is seen, in this namespace if one is given, and nothing after it.
    pub(crate) fn mark(
        &mut self,
        resource: Resource,
        seen: Seen<'_>,
        namespace: Option<&str>,
    ) -> Result<Mark> {
        let is_here = |at: &str| namespace.is_none_or(|namespace| namespace == at);
        let found = self.living.iter().find(|((of, at, _), object)| {
            *of == resource && is_here(at) && seen.has(at, object, self.ranks())
        });
        if let Some((key, _)) = found {
            let key = key.clone();
            self.touch(&key)?;
            return self.marked(&key);
        }
        let mut namespaces = seen.rule.namespaces(self.tenants, self.ranks());
        namespaces.retain(|at| is_here(at));
        for try_ in 0..TRIES {
            let at = self.random.choice(&namespaces).context("a rule has namespaces")?.clone();
            let tier = TIERS.into_iter().find(|tier| {
                has_tier(seen.asked, Some(tier)) && has_tier(seen.rule.tiers.as_ref(), Some(tier))
            });
            let key = (resource, at, format!("mark-{try_}"));
            if !self.living.contains_key(&key) {
                self.create(&key, tier)?;
            }
            if self.living.get(&key).is_some_and(|object| seen.has(&key.1, object, self.ranks())) {
                return self.marked(&key);
            }
        }
        anyhow::bail!("no object of {TRIES} is in the shard: {:?}", seen.rule)
    }

    /// Writes an object that the API server lets pass and the proxy does not, if there is one.
    pub(crate) fn write_unseen(
        &mut self,
        resource: Resource,
        seen: Seen<'_>,
    ) -> Result<Option<u64>> {
        let found = self.living.iter().find(|((of, at, _), object)| {
            *of == resource
                && seen.inside.is_none_or(|inside| inside == at)
                && !seen.has(at, object, self.ranks())
                && has_tier(seen.asked, object.tier)
                && has_tier(seen.rule.tiers.as_ref(), object.tier)
        });
        let Some((key, _)) = found else { return Ok(None) };
        let key = key.clone();
        self.touch(&key)?;
        Ok(Some(self.marked(&key)?.rv))
    }

    fn marked(&self, key: &Key) -> Result<Mark> {
        let object = self.living.get(key).context("it was just written")?;
        Ok(Mark { namespace: key.1.clone(), uid: object.uid.clone(), rv: object.rv })
    }

    fn write(&mut self) -> Result<()> {
        let resource = self.random.choice(Resource::ALL).context("there are two")?;
        let here = self.present();
        let Some(namespace) = self.random.choice(&here) else { return self.revive() };
        let key = (resource, namespace.clone(), format!("object-{}", self.random.usize(..NAMES)));
        if !self.living.contains_key(&key) {
            let tier = self.some_tier();
            return self.create(&key, tier);
        }
        match self.random.u8(..20) {
            0..=5 => self.touch(&key),
            6..=12 => self.relabel(&key),
            13..=15 => self.replace(&key),
            16..=17 => self.delete(&key),
            _ => {
                self.delete(&key)?;
                let tier = self.some_tier();
                self.create(&key, tier)
            }
        }
    }

    pub(super) fn create(&mut self, key: &Key, tier: Option<&'static str>) -> Result<()> {
        let object = self.draft(key, tier);
        let answer = self.api.client().post(&key.0.path(Some(&key.1)), &object)?.json()?;
        self.wrote(key, &answer, tier)
    }

    /// All of it is written again.
    fn replace(&mut self, key: &Key) -> Result<()> {
        let tier = self.some_tier();
        let mut object = self.draft(key, tier);
        // A custom resource is not replaced blindly.
        if let Some(living) = self.living.get(key) {
            object["metadata"]["resourceVersion"] = living.rv.to_string().into();
        }
        let body = object.to_string().into_bytes();
        let answer = self.api.client().request("PUT", &path(key), "application/json", body)?;
        self.wrote(key, &answer.json()?, tier)
    }

    fn touch(&mut self, key: &Key) -> Result<()> {
        let tier = self.living.get(key).and_then(|living| living.tier);
        let held = self.held(key.0);
        self.patch(key, &held, tier)
    }

    fn relabel(&mut self, key: &Key) -> Result<()> {
        let tier = self.some_tier();
        self.patch(key, &json!({ "metadata": { "labels": { "tier": tier } } }), tier)
    }

    fn patch(&mut self, key: &Key, patch: &Value, tier: Option<&'static str>) -> Result<()> {
        let kind = "application/merge-patch+json";
        let body = patch.to_string().into_bytes();
        let answer = self.api.client().request("PATCH", &path(key), kind, body)?.json()?;
        self.wrote(key, &answer, tier)
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.api.client().delete(&path(key))?.json()?;
        self.living.remove(key);
        Ok(())
    }

    /// What the API server answers to a write is what lives.
    fn wrote(&mut self, key: &Key, answer: &Value, tier: Option<&'static str>) -> Result<()> {
        let meta = &answer["metadata"];
        let text = |name: &str| meta[name].as_str().context("an object has a uid and a version");
        let (uid, rv) = (text("uid")?.to_owned(), text("resourceVersion")?.parse()?);
        self.living.insert(key.clone(), Living { uid, rv, tier });
        Ok(())
    }

    /// Deletes a collection as a controller of the shard does, and sees that it was the shard's.
    fn delete_collection(&mut self, client: &Client, seen: Seen<'_>) -> Result<()> {
        let resource = self.random.choice(Resource::ALL).context("there are two")?;
        let here = self.present();
        let Some(namespace) = self.random.choice(&here) else { return Ok(()) };
        // What the proxy does not know to be the shard's it leaves.
        self.settle(client, seen.rule)?;
        let tiers: Option<BTreeSet<_>> =
            self.random.bool().then(|| BTreeSet::from(["gold", "iron"]));
        let mut target = resource.path(Some(namespace));
        if let Some(tiers) = &tiers {
            let selector = tier_selector(tiers).replace(' ', "%20").replace(',', "%2C");
            target = format!("{target}?labelSelector={selector}");
        }
        let answer = client.request("DELETE", &target, "application/json", Vec::new())?;
        ensure!([200, 403].contains(&answer.status), "{target}: {} {}", answer.status, answer.text);
        let left = self.api.client().get(&resource.path(Some(namespace)))?.json()?;
        let left: BTreeSet<String> = left["items"]
            .as_array()
            .context("a list has items")?
            .iter()
            .filter_map(|item| item["metadata"]["uid"].as_str().map(str::to_owned))
            .collect();
        // Who deletes asks by its own selector, not by that of the informers.
        let deletes = Seen { rule: seen.rule, asked: tiers.as_ref(), inside: None };
        for (key, object) in &self.living {
            if key.0 == resource && key.1 == *namespace {
                let is_to_go = deletes.has(namespace, object, self.ranks());
                ensure!(
                    left.contains(&object.uid) != is_to_go,
                    "DELETE {target} answered {} and {} {key:?}, uid {}, tier {:?}, of {:?}",
                    answer.status,
                    if is_to_go { "left" } else { "deleted" },
                    object.uid,
                    object.tier,
                    seen.rule,
                );
            }
        }
        self.living.retain(|key, object| {
            key.0 != resource || key.1 != *namespace || left.contains(&object.uid)
        });
        Ok(())
    }

    fn some_tier(&mut self) -> Option<&'static str> {
        self.random.choice(TIERS).filter(|_| self.random.u8(..5) > 0)
    }

    fn draft(&mut self, key: &Key, tier: Option<&'static str>) -> Value {
        let mut object = self.held(key.0);
        let mut labels = json!({ AT: Tenants::letter(&key.1) });
        if let Some(tier) = tier {
            labels["tier"] = tier.into();
        }
        let annotations = json!({ "text": self.text() });
        if key.0 == Resource::Widgets {
            object["apiVersion"] = "demo.example.com/v1alpha1".into();
            object["kind"] = "Widget".into();
        }
        object["metadata"] = json!({ "name": key.2, "labels": labels, "annotations": annotations });
        object
    }

    /// Never the same twice: a write that changes nothing has no version.
    fn held(&mut self, resource: Resource) -> Value {
        self.written += 1;
        match resource {
            Resource::Widgets => json!({ "spec": { "size": self.written } }),
            Resource::ConfigMaps => {
                json!({ "data": { "written": self.written.to_string(), "text": self.text() } })
            }
        }
    }

    /// Text that a scanner of bytes may stumble over.
    fn text(&mut self) -> String {
        const TEXTS: [&str; 6] = [
            "",
            "plain",
            r#"{"metadata":{"uid":"x","namespace":"a","resourceVersion":"1"}}"#,
            "\\\"}]},\n\t\u{0}\u{1f600}\u{ffff}é",
            "]}\n{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"uid\":\"\"}}}\n",
            "\u{a}\u{12}\u{1a}k8s\u{0}\u{7f}",
        ];
        let text = self.random.choice(TEXTS).unwrap_or_default();
        // Now and then larger than what a socket is read by.
        let times = if self.random.u8(..16) == 0 { self.random.usize(1..1000) } else { 1 };
        text.repeat(times)
    }
}

fn path(key: &Key) -> String {
    format!("{}/{}", key.0.path(Some(&key.1)), key.2)
}
