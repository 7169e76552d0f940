//! What happens to namespaces in a history: they end, are made again, and get other labels.
//!
//! Also when the proxy knows of it. A policy by the labels of namespaces is made again whenever they
//! change, several changes at once or one by one: no number of policies says that it knows them
//! all. What it shows does.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use ctrlmesh_e2e::{Client, until};
use serde_json::{Value, json};

use crate::oracle::{
    history::{History, Model, Resource, Seen},
    informer::LIMIT,
    rule::{RANK, RANKS, Ranks, Rule, TIERS},
};

/// The namespaces of a history as they are.
#[derive(Default)]
pub(crate) struct Namespaces {
    ranks: Ranks,
    absent: BTreeSet<String>,
    /// Those that are in the shard stay in it, and no other enters it.
    kept_by: Option<Rule>,
    /// The own rank of the rule by which the proxy knows of all that was done to them.
    settled: Option<String>,
    /// Whether the beacon was in the shard when the informers were judged last.
    beacon_was_in: bool,
    /// How many labels were written that no rule follows.
    notes: usize,
}

impl History<'_> {
    pub(crate) fn ranks(&self) -> &Ranks {
        &self.namespaces.ranks
    }

    /// From now on no namespace enters or leaves the shard of the rule; without one, any may.
    pub(crate) fn keep_namespaces_of(&mut self, rule: Option<&Rule>) {
        self.namespaces.kept_by = rule.cloned();
    }

    pub(super) fn create_namespaces(&mut self) -> Result<()> {
        let ranks = self.tenants.first_ranks();
        for namespace in self.tenants.all() {
            self.create_namespace(&namespace, ranks.get(&namespace).cloned())?;
        }
        Ok(())
    }

    /// Those that come and go and are there.
    pub(super) fn present(&self) -> Vec<String> {
        let mut busy = self.tenants.busy();
        busy.retain(|name| !self.namespaces.absent.contains(name));
        busy
    }

    /// Makes all namespaces again.
    pub(crate) fn revive(&mut self) -> Result<()> {
        for namespace in std::mem::take(&mut self.namespaces.absent) {
            let rank = self.some_rank(&namespace);
            self.create_namespace(&namespace, rank)?;
        }
        Ok(())
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) -> Result<()> {
        for namespace in self.tenants.all() {
            if !self.namespaces.absent.contains(&namespace) {
                self.remove_namespace(&namespace)?;
            }
        }
        Ok(())
    }

    pub(super) fn end_namespace(&mut self) -> Result<()> {
        let here = self.present();
        match self.random.choice(&here) {
            Some(namespace) if !self.is_kept(namespace) => self.remove_namespace(namespace),
            _ => Ok(()),
        }
    }

    /// Gives some namespace another rank, and often another label next to it.
    pub(super) fn relabel_namespace(&mut self) -> Result<()> {
        let here = self.present();
        let Some(namespace) = self.random.choice(&here).cloned() else { return Ok(()) };
        let rank = self.some_rank(&namespace);
        self.set_rank(&namespace, rank)
    }

    /// Gives so many namespaces ranks by which they enter or leave the shard, maybe one twice.
    pub(crate) fn move_namespaces(&mut self, rule: &Rule, count: usize) -> Result<()> {
        for _ in 0..count {
            let here = self.present();
            let Some(namespace) = self.random.choice(&here).cloned() else { return Ok(()) };
            let is_in = rule.has_namespace(&namespace, self.ranks());
            let rank = self.rank_that(|rank| rule.has_rank(rank) != is_in);
            self.set_rank(&namespace, rank)?;
        }
        Ok(())
    }

    /// Waits until the proxy knows of all changes to namespaces, if the rule follows their labels.
    /// `client` asks the proxy.
    pub(crate) fn settle(&mut self, client: &Client, rule: &Rule) -> Result<()> {
        let Some(own) = rule.own_rank() else { return Ok(()) };
        let Namespaces { kept_by, settled, .. } = &self.namespaces;
        if kept_by.is_some() || settled.as_deref() == Some(own) {
            return Ok(());
        }
        self.move_beacon(client, rule, own)
    }

    /// [`Self::settle`], and sees to it that an informer whose store is right has been told of it
    /// too: no store that was right at the quiet point before is right now.
    pub(crate) fn come_to_rest(&mut self, client: &Client, rule: &Rule) -> Result<()> {
        let beacon = self.tenants.beacon();
        if let Some(own) = rule.own_rank() {
            let is_shown = |name: &String| rule.has_namespace(name, self.ranks());
            if !self.tenants.busy().iter().any(is_shown) {
                self.move_namespaces(rule, 1)?;
            }
            self.settle(client, rule)?;
            if rule.has_namespace(&beacon, self.ranks()) == self.namespaces.beacon_was_in {
                self.move_beacon(client, rule, own)?;
            }
        }
        self.namespaces.beacon_was_in = rule.has_namespace(&beacon, self.ranks());
        Ok(())
    }

    /// First the expected objects must be there by themselves: nothing but the earlier changes
    /// brings them about. Then the beacon enters or leaves the shard. The proxy learns of
    /// namespaces in their order, so who knows of that knows of all before, be it undone meanwhile.
    fn move_beacon(&mut self, client: &Client, rule: &Rule, own: &str) -> Result<()> {
        let beacon = self.tenants.beacon();
        for resource in Resource::ALL {
            for tier in TIERS {
                let key = (resource, beacon.clone(), tier.to_owned());
                if !self.lives(&key) {
                    self.create(&key, Some(tier))?;
                }
            }
        }
        self.wait_for_lists(client, rule)?;
        let is_in = rule.has_namespace(&beacon, self.ranks());
        self.set_rank(&beacon, (!is_in).then(|| own.to_owned()))?;
        self.wait_for_lists(client, rule)?;
        self.namespaces.settled = Some(own.to_owned());
        Ok(())
    }

    /// Waits until lists show what the model has.
    fn wait_for_lists(&self, client: &Client, rule: &Rule) -> Result<()> {
        for resource in Resource::ALL {
            let model = self.seen(resource, Seen { rule, asked: None, inside: None });
            let mut wrong = String::new();
            until("the proxy knows the namespaces", LIMIT, || {
                let is_right = self.is_listed(client, resource, &model)?;
                Ok(is_right.map_err(|text| wrong = text).ok())
            })
            .with_context(|| format!("{resource:?} with {:?}: {wrong}", self.ranks()))?;
        }
        Ok(())
    }

    /// Whether a list is the model; the fault, else. A server that was just started may not
    /// know yet who may list, or what.
    fn is_listed(
        &self,
        client: &Client,
        resource: Resource,
        model: &Model,
    ) -> Result<Result<(), String>> {
        let answer = client.get(&resource.path(None))?;
        if answer.status != 200 {
            return Ok(Err(format!("{} {}", answer.status, answer.text)));
        }
        let list = answer.json()?;
        let mut listed = Model::new();
        for item in list["items"].as_array().context("a list has items")? {
            let text = |name: &str| item["metadata"][name].as_str().unwrap_or_default().to_owned();
            if self.tenants.has(&text("namespace")) {
                let is = (text("uid"), text("resourceVersion").parse()?);
                listed.insert((text("namespace"), text("name")), is);
            }
        }
        let more: Vec<_> = listed.iter().filter(|(at, is)| model.get(*at) != Some(is)).collect();
        let less: Vec<_> = model.iter().filter(|(at, is)| listed.get(*at) != Some(is)).collect();
        let is_right = more.is_empty() && less.is_empty();
        let text = || format!("lists have {more:?} where the model has {less:?}");
        Ok(if is_right { Ok(()) } else { Err(text()) })
    }

    /// A rank that the namespace may have, or none.
    fn some_rank(&mut self, namespace: &str) -> Option<String> {
        match self.namespaces.kept_by.clone() {
            None => self.rank_that(|_| true),
            Some(rule) => {
                let is_in = rule.has_namespace(namespace, self.ranks());
                self.rank_that(|rank| rule.has_rank(rank) == is_in)
            }
        }
    }

    /// A rank that will do, or none, if none does.
    fn rank_that(&mut self, will_do: impl Fn(Option<&str>) -> bool) -> Option<String> {
        let ranks = RANKS.into_iter().map(Some).chain([None]);
        let ranks: Vec<Option<&str>> = ranks.filter(|rank| will_do(*rank)).collect();
        self.random.choice(ranks).flatten().map(str::to_owned)
    }

    fn is_kept(&self, namespace: &str) -> bool {
        let kept_by = self.namespaces.kept_by.as_ref();
        kept_by.is_some_and(|rule| rule.has_namespace(namespace, self.ranks()))
    }

    fn set_rank(&mut self, namespace: &str, rank: Option<String>) -> Result<()> {
        let mut labels = json!({ RANK: rank });
        if self.random.bool() {
            self.namespaces.notes += 1;
            labels["note"] = self.namespaces.notes.to_string().into();
        }
        let patch = json!({ "metadata": { "labels": labels } }).to_string();
        let path = format!("/api/v1/namespaces/{namespace}");
        let kind = "application/merge-patch+json";
        self.api.client().request("PATCH", &path, kind, patch.into_bytes())?.json()?;
        self.has_rank(namespace, rank);
        Ok(())
    }

    fn create_namespace(&mut self, namespace: &str, rank: Option<String>) -> Result<()> {
        let labels = rank.as_ref().map_or(Value::Null, |rank| json!({ RANK: rank }));
        let object = json!({ "metadata": { "name": namespace, "labels": labels } });
        self.api.client().post("/api/v1/namespaces", &object)?.json()?;
        self.has_rank(namespace, rank);
        Ok(())
    }

    fn has_rank(&mut self, namespace: &str, rank: Option<String>) {
        self.namespaces.settled = None;
        match rank {
            Some(rank) => drop(self.namespaces.ranks.insert(namespace.to_owned(), rank)),
            None => drop(self.namespaces.ranks.remove(namespace)),
        }
    }

    /// What the controller of namespaces does, which does not run here: empty it, then let it go.
    fn remove_namespace(&mut self, namespace: &str) -> Result<()> {
        let client = self.api.client();
        for resource in Resource::ALL {
            client.delete(&resource.path(Some(namespace)))?.json()?;
        }
        self.forget(namespace);
        let path = format!("/api/v1/namespaces/{namespace}");
        client.delete(&path)?.json()?;
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": namespace },
            "spec": { "finalizers": [] },
        });
        let body = object.to_string().into_bytes();
        let finalize = format!("{path}/finalize");
        client.request("PUT", &finalize, "application/json", body)?.json()?;
        self.namespaces.absent.insert(namespace.to_owned());
        self.has_rank(namespace, None);
        Ok(())
    }
}
