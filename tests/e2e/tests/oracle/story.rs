//! What an informer's program printed, read as a story: what it was told, and what it holds.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::oracle::rule::Tenants;

/// What a store holds, by namespace and name.
pub(crate) type Store = BTreeMap<(String, String), Entry>;

/// One version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) uid: String,
    pub(crate) rv: u64,
    pub(crate) labels: Value,
    /// Nothing where only metadata was asked for.
    pub(crate) data: Value,
    /// Of all of the object.
    pub(crate) digest: String,
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) rv: u64,
    pub(crate) kind: String,
    pub(crate) key: (String, String),
    pub(crate) uid: String,
    pub(crate) digest: String,
}

/// A story up to some line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Story {
    /// Where the last list was, if the client says so.
    pub(crate) listed_at: u64,
    /// How often it listed.
    pub(crate) lists: usize,
    /// All events, in order.
    pub(crate) events: Vec<Told>,
    /// What the lists and the events make up.
    pub(crate) replayed: Store,
    /// The highest version that it was told, by whatever means.
    pub(crate) position: u64,
    /// A list that is not complete yet.
    filling: Filling,
    /// Where a watch resumed that has told nothing newer yet: it may be brought over from scopes that its
    /// client does not have, too.
    returned: Option<u64>,
    /// Up to where a watch that resumed further back tells again what happened: as the API server does.
    again_until: u64,
    /// Whether something old was told, and no bookmark since: if the client came back with that
    /// version it would be told much again.
    is_behind: bool,
}

/// What can be expected of a story.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// The policy does not change: no version is lower than the one before.
    pub(crate) is_steady: bool,
    /// The client tells of bookmarks. One comes after what changes hands, before what happens then.
    pub(crate) has_bookmarks: bool,
}

#[derive(Clone, Debug, Default)]
enum Filling {
    #[default]
    Nothing,
    /// By pages. Of the last one nothing says that it is the last.
    Pages(Store),
    /// By a watch that has not come to its present yet.
    Stream(Store),
}

impl Story {
    /// Reads the lines; objects of other seeds count for nothing. ADDED is what was not held, and
    /// MODIFIED and DELETED what was.
    pub(crate) fn read(lines: &[Value], tenants: &Tenants, expected: Expected) -> Result<Self> {
        let mut story = Self::default();
        for line in lines {
            story.add(line, tenants, expected).with_context(|| format!("reading {line}"))?;
        }
        Ok(story)
    }

    /// Several watches, each of which has a part of the objects, as one.
    pub(crate) fn union(parts: Vec<Self>) -> Self {
        let mut whole = Self::default();
        for part in parts {
            whole.listed_at = whole.listed_at.max(part.listed_at);
            whole.position = whole.position.max(part.position);
            whole.lists = whole.lists.max(part.lists);
            whole.events.extend(part.events);
            whole.replayed.extend(part.replayed);
        }
        whole.events.sort_by_key(|told| told.rv);
        whole
    }

    fn add(&mut self, line: &Value, tenants: &Tenants, expected: Expected) -> Result<()> {
        match line["event"].as_str() {
            // client-go's detector lists where the informer is already.
            Some("list") if line["match"] == "Exact" || !line["error"].is_null() => {}
            Some("list") => self.list(line, tenants)?,
            Some("watch") => {
                self.filling = match line["initialEvents"] == true && line["error"].is_null() {
                    true => Filling::Stream(Store::new()),
                    false => Filling::Nothing,
                };
                self.returned = line["from"].as_str().and_then(|from| from.parse().ok());
                // Without bookmarks, a client goes on from the last event, of whatever age.
                let is_back = self.returned.is_some_and(|from| from < self.position);
                self.again_until = if is_back { self.position } else { 0 };
            }
            // What tells of no watch has begun another one where it is.
            Some("watch-error") => self.returned = Some(self.position),
            Some("wire") => self.wire(line, tenants, expected)?,
            _ => {}
        }
        Ok(())
    }

    fn list(&mut self, line: &Value, tenants: &Tenants) -> Result<()> {
        let mut store = match std::mem::take(&mut self.filling) {
            Filling::Pages(store) if line["continue"] == true => store,
            _ => Store::new(),
        };
        store.extend(entries(line, tenants)?);
        self.is_behind = false;
        self.replayed = store.clone();
        self.filling = Filling::Pages(store);
        self.lists += usize::from(line["continue"] != true);
        if let Some(rv) = line["rv"].as_str() {
            self.listed_at = self.listed_at.max(rv.parse()?);
            self.position = self.position.max(self.listed_at);
        }
        Ok(())
    }

    /// The initial events of a watch are complete.
    fn has_initial(&mut self, rv: u64) {
        if let Filling::Stream(store) = std::mem::take(&mut self.filling) {
            self.replayed = store;
        }
        self.is_behind = false;
        self.listed_at = self.listed_at.max(rv);
        self.position = self.position.max(rv);
        self.lists += 1;
    }

    /// An event of what the client was told already.
    fn tell_again(&mut self, kind: &str, key: (String, String), entry: Entry) {
        let held = self.replayed.get(&key);
        match kind {
            "DELETED" if held.is_some_and(|held| held.uid != entry.uid) => {}
            "DELETED" => drop(self.replayed.remove(&key)),
            _ => drop(self.replayed.insert(key, entry)),
        }
    }

    fn wire(&mut self, line: &Value, tenants: &Tenants, expected: Expected) -> Result<()> {
        let kind = line["type"].as_str().context("an event has a type")?;
        if kind == "ERROR" {
            return Ok(());
        }
        let object = &line["object"];
        let rv: u64 = object["rv"].as_str().context("an event has a version")?.parse()?;
        let kept = entry(object, tenants)?.filter(|_| kind != "BOOKMARK");
        if let Filling::Stream(store) = &mut self.filling {
            if line["initialEventsEnd"] == true {
                self.has_initial(rv);
            } else if let Some((key, entry)) = kept {
                store.insert(key, entry);
            }
            return Ok(());
        }
        if expected.is_steady && rv < self.position {
            bail!("version {rv} comes after version {}", self.position);
        }
        // What comes may be newer than all that the client was told. What leaves, it was told of.
        let is_live = kind == "MODIFIED" || (kind == "DELETED" && rv > self.position);
        if expected.has_bookmarks && self.is_behind && is_live {
            bail!("what changed hands ends without a bookmark at {}", self.position);
        }
        self.is_behind = rv < self.position || (self.is_behind && kind != "BOOKMARK");
        self.position = self.position.max(rv);
        self.returned = self.returned.filter(|from| kind != "BOOKMARK" && rv <= *from);
        let Some((key, entry)) = kept else { return Ok(()) };
        if rv <= self.again_until {
            self.tell_again(kind, key, entry);
            return Ok(());
        }
        let same = self.replayed.get(&key).filter(|held| held.uid == entry.uid);
        let is_told_again = match kind {
            "ADDED" => same.is_some_and(|held| held.rv == entry.rv),
            _ => kind == "DELETED" && same.is_none(),
        };
        if self.returned.is_some() && is_told_again {
            return Ok(());
        }
        self.events.push(Told {
            rv,
            kind: kind.to_owned(),
            key: key.clone(),
            uid: entry.uid.clone(),
            digest: entry.digest.clone(),
        });
        let held = self.replayed.get(&key).is_some_and(|held| held.uid == entry.uid);
        ensure!(
            if kind == "ADDED" { !held } else { held || kind == "APPLIED" },
            "it {} such an object already",
            if held { "holds" } else { "does not hold" }
        );
        if kind == "DELETED" {
            self.replayed.remove(&key);
        } else {
            self.replayed.insert(key, entry);
        }
        Ok(())
    }
}

/// What client-go told its handlers, as a store.
pub(crate) fn handled(lines: &[Value], tenants: &Tenants) -> Result<Store> {
    let mut store = Store::new();
    for line in lines {
        let event = line["event"].as_str().unwrap_or_default();
        if !["added", "updated", "deleted", "missed-delete"].contains(&event) {
            continue;
        }
        let Some((key, entry)) = entry(&line["object"], tenants)? else { continue };
        match event {
            "added" | "updated" => drop(store.insert(key, entry)),
            _ => drop(store.remove(&key)),
        }
    }
    Ok(store)
}

/// The objects that a line has.
pub(crate) fn entries(line: &Value, tenants: &Tenants) -> Result<Store> {
    let objects = line["objects"].as_array().context("a store and a list have objects")?;
    objects.iter().filter_map(|object| entry(object, tenants).transpose()).collect()
}

/// One object; nothing if it is not of this seed.
fn entry(object: &Value, tenants: &Tenants) -> Result<Option<((String, String), Entry)>> {
    let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
    let namespace = text("ns");
    if !tenants.has(&namespace) {
        return Ok(None);
    }
    let entry = Entry {
        uid: text("uid"),
        rv: text("rv").parse().context("a version")?,
        labels: object["labels"].clone(),
        data: object["data"].clone(),
        digest: text("digest"),
    };
    Ok(Some(((namespace, text("name")), entry)))
}
