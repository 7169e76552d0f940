//! The life of one seed.

use std::{
    collections::BTreeSet,
    fmt, fs,
    ops::AddAssign,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::oracle::{
    history::{History, Mark, Resource, Seen},
    informer::{Informer, Selectors},
    judge::{last_lines, same_as_list, same_as_model, same_stores, same_streams},
    lane::Lane,
    moves::{World, change, start_proxy},
    plan::{Client, Gate, Native, Plan},
    rule::{Ranks, tier_selector},
    story::{Store, Story, entries},
};

/// Writes before the informers start, and in each half of a round.
const STEPS: usize = 50;

/// The informers of one resource.
struct Pair {
    resource: Resource,
    /// Each with the namespace that it has, if it has but one. None where the policy changes.
    natives: Vec<(Option<String>, Informer)>,
    ours: Informer,
    /// More clients like ours, through the same proxy.
    companions: Vec<Informer>,
    /// Events of the streams up to this version are forgotten, where the client does not say where
    /// it listed.
    floor: u64,
    /// How often either had listed at the last quiet point.
    lists: (usize, usize),
}

/// What was found equal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Judged {
    quiet_points: usize,
    objects: usize,
    events: usize,
    /// How often ours listed beyond the first time.
    relists: usize,
    /// Watches that were brought over to another policy with their stream open, by the last proxy.
    differences: f64,
    /// Lists and watches of which the API server was told the boundary, by the last proxy.
    pushed: f64,
}

impl AddAssign for Judged {
    fn add_assign(&mut self, other: Self) {
        self.quiet_points += other.quiet_points;
        self.objects += other.objects;
        self.events += other.events;
        self.relists += other.relists;
        self.differences += other.differences;
        self.pushed += other.pushed;
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quiet_points, objects, events, relists, differences, pushed } = self;
        write!(
            f,
            "{quiet_points} quiet points, {objects} objects in the stores, {events} events, ours \
             listed again {relists} times, {differences} changes by difference, {pushed} requests \
             pushed down"
        )
    }
}

/// What a person who reads the output wants to know of a plan.
pub(crate) fn describe(plan: &Plan) -> String {
    let Plan { client, native, rule, asked, inside, disruption, .. } = plan;
    let flags = [
        ("changes", plan.changes),
        ("policy of the cluster", plan.of_cluster),
        ("in a ring", plan.in_ring),
        ("keeps state", plan.keeps_state),
        ("pushdown", plan.pushdown),
    ];
    let flags: Vec<_> =
        flags.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name).collect();
    format!(
        "{client:?}, native {native:?}, asks for {asked:?} in {inside:?}, {rule:?}, {flags:?}, \
         {disruption:?}"
    )
}

/// Runs a seed to its end, or to the first difference.
pub(crate) fn seed(lane: &Lane, plan: Plan) -> Result<Judged> {
    let tenants = plan.tenants.clone();
    let mut history = History::new(&lane.api, &tenants, plan.seed)?;
    if !plan.changes && plan.rule.own_rank().is_some() {
        // The proxy may tell by difference what happens in a namespace that enters or leaves.
        history.keep_namespaces_of(Some(&plan.rule));
    }
    history.go_on(STEPS, None)?;
    let directory = lane.api.directory().join(format!("seed-{:x}", plan.seed));
    fs::create_dir_all(&directory)?;
    let proxy = start_proxy(lane, &plan)?;
    // A proxy without state does not know what an earlier one has shown at the version of a list, so a
    // watch on another connection waits for a write.
    let may_expire = matches!(plan.client, Client::Java { .. }) && !plan.keeps_state;
    let mut world = World { lane, plan, history, proxy, may_expire };
    let mut pairs = start_informers(&world, &directory)?;
    let done = rounds(&mut world, &mut pairs);
    let done = done.map_err(|error| {
        let kept = keep(&world, &pairs, &directory);
        let streams: String = pairs
            .iter()
            .flat_map(|pair| pair.natives.iter().map(|(_, native)| native).chain([&pair.ours]))
            .map(|informer| {
                format!("  {} was last told:\n{}", informer.name, last_lines(&informer.lines()))
            })
            .collect();
        let policy = world.plan.rule.policy(&tenants);
        error.context(format!("policy {policy}\n{streams}kept: {kept:?}\n"))
    });
    drop((pairs, world.proxy));
    // The next seed finds nothing of this one.
    let cleared = world.history.clear();
    fs::remove_dir_all(&directory)?;
    done.and_then(|judged| cleared.map(|()| judged))
}

fn rounds(world: &mut World<'_>, pairs: &mut [Pair]) -> Result<Judged> {
    let mut judged = Judged::default();
    for round in 0..world.plan.rounds {
        let disruption = world.plan.disruption_in(round);
        let is_during_change = world.plan.disrupts_change(round);
        if world.plan.changes && round > 0 {
            change(world, disruption.filter(|_| is_during_change))?;
        }
        write(world)?;
        if let Some(what) = disruption.filter(|_| !is_during_change) {
            world.disrupt(what)?;
        }
        write(world)?;
        // The labels of namespaces change from the first round on.
        let has_changed = world.plan.changes && (round > 0 || world.plan.rule.own_rank().is_some());
        let equal = quiet(world, pairs, has_changed).with_context(|| format!("round {round}"))?;
        judged += equal;
    }
    let policies = world.epoch()?;
    let World { plan, history, proxy, may_expire, .. } = world;
    for pair in &*pairs {
        pair.ours.has_encoding(plan, pair.resource)?;
        let story = pair.ours.story(&plan.tenants, false)?;
        judged.events += story.events.len();
        judged.relists += story.lists.saturating_sub(1);
        // A client that compares nothing has no list that puts it right.
        let is_relisted = story.lists > 1 && !*may_expire;
        ensure!(!is_relisted, "{:?}: {} lists where one is enough", pair.resource, story.lists);
    }
    judged.differences = proxy.metric(r#"ctrlmesh_stream_changes_total{how="difference"}"#)?;
    for how in ["hash", "namespace"] {
        judged.pushed += proxy.metric(&format!(r#"ctrlmesh_pushdown_total{{how="{how}"}}"#))?;
    }
    ensure!(plan.pushdown || judged.pushed == 0.0, "{} requests were pushed down", judged.pushed);
    ensure!(plan.changes || policies <= 1.0, "what mattered to no one made {policies} policies");
    let is_told_bookmarks = matches!(plan.client, Client::Go { .. });
    if !plan.changes && !plan.pushdown && is_told_bookmarks {
        for pair in pairs {
            if let Some(rv) = history.write_unseen(pair.resource, seen(plan))? {
                pair.ours.wait_for_position(rv)?;
            }
        }
    }
    Ok(judged)
}

fn write(world: &mut World<'_>) -> Result<()> {
    let client = world.client()?;
    world.history.go_on(STEPS, Some((&client, seen(&world.plan))))
}

fn seen(plan: &Plan) -> Seen<'_> {
    let inside = plan.inside.as_deref();
    Seen { rule: &plan.rule, asked: plan.asked.as_ref(), inside }
}

/// Nothing is written any more: judges.
fn quiet(world: &mut World<'_>, pairs: &mut [Pair], has_changed: bool) -> Result<Judged> {
    world.history.revive()?;
    if world.plan.changes {
        let client = world.client()?;
        world.history.come_to_rest(&client, &world.plan.rule)?;
    }
    let mut judged = Judged::default();
    for pair in pairs {
        let World { plan, history, .. } = &mut *world;
        let mut marks = Vec::new();
        if plan.native == Native::Fields {
            for namespace in plan.rule.namespaces(&plan.tenants, history.ranks()) {
                marks.push(history.mark(pair.resource, seen(plan), Some(&namespace))?);
            }
        } else {
            marks.push(history.mark(pair.resource, seen(plan), plan.inside.as_deref())?);
        }
        let last = marks.last().context("a rule has namespaces")?;
        pair.ours.wait_for(last)?;
        judged.quiet_points += 1;
        judged.objects += if world.plan.changes {
            judge_change(world, pair, has_changed)?
        } else {
            judge(world, pair, &marks, last)?
        };
        let right = pair.ours.store(&world.plan.tenants)?;
        for companion in &pair.companions {
            // Each comes there in its own time.
            companion.wait_for_store(&world.plan.tenants, |store| same_as_list(&right, store))?;
        }
    }
    Ok(judged)
}

/// Native and ours are where the last write is: they are equal now, not soon. How many objects
/// they have.
fn judge(world: &World<'_>, pair: &mut Pair, marks: &[Mark], last: &Mark) -> Result<usize> {
    let World { plan, history, .. } = world;
    for (namespace, native) in &pair.natives {
        let is_its =
            |mark: &&Mark| namespace.as_ref().is_none_or(|namespace| mark.namespace == *namespace);
        native.wait_for(marks.iter().find(is_its).context("each has its mark")?)?;
    }
    let tenants = &plan.tenants;
    let ours = (pair.ours.store(tenants)?, pair.ours.story(tenants, true)?);
    let (mut native_store, mut stories) = (Store::new(), Vec::new());
    for (_, native) in &mut pair.natives {
        native_store.extend(native.store(tenants)?);
        stories.push(native.story(tenants, true)?);
    }
    let native = (native_store, Story::union(stories));
    let what = format!("{:?}", pair.resource);
    let model = history.seen(pair.resource, seen(plan));
    same_as_model(&format!("{what}, native"), &model, &native.0)?;
    same_stores(&what, &native.0, &ours.0)?;
    same_stores(&format!("{what}, native, by its events"), &native.1.replayed, &native.0)?;
    same_stores(&format!("{what}, ours, its events as native"), &ours.1.replayed, &ours.0)?;
    let lists = (native.1.lists, ours.1.lists);
    if matches!(plan.client, Client::Rust { .. }) && lists != pair.lists {
        pair.floor = last.rv;
    }
    pair.lists = lists;
    let floor = pair.floor.max(native.1.listed_at).max(ours.1.listed_at);
    same_streams(&what, floor, &native.1, &ours.1)?;
    Ok(ours.0.len())
}

/// Ours gets to where a native list is already; is there, where the policy has not changed yet.
/// How many objects it has.
fn judge_change(world: &World<'_>, pair: &mut Pair, has_changed: bool) -> Result<usize> {
    let World { plan, history, .. } = world;
    let tenants = &plan.tenants;
    let what = format!("{:?}", pair.resource);
    let list = native_list(world, pair.resource)?;
    same_as_model(&format!("{what}, native"), &history.seen(pair.resource, seen(plan)), &list)?;
    if has_changed {
        pair.ours.wait_for_store(tenants, |store| same_as_list(&list, store))?;
    }
    let store = pair.ours.store(tenants)?;
    same_as_list(&list, &store).map_err(|text| anyhow::anyhow!("{what}: the store:\n{text}"))?;
    let story = pair.ours.story(tenants, false)?;
    same_stores(&format!("{what}, ours, its events as native"), &story.replayed, &store)?;
    Ok(store.len())
}

fn native_list(world: &World<'_>, resource: Resource) -> Result<Store> {
    let World { lane, plan, history, .. } = world;
    let selectors = native_selectors(plan, history.ranks(), None);
    let encoded = |(name, text): (&str, Option<String>)| {
        text.map(|text| format!("{name}={}", utf8_percent_encode(&text, NON_ALPHANUMERIC)))
    };
    let query: Vec<String> =
        [("labelSelector", selectors.label), ("shardSelector", selectors.shard)]
            .into_iter()
            .filter_map(encoded)
            .collect();
    let path = format!("{}?{}", resource.path(None), query.join("&"));
    let list = lane.api.client().get(&path)?.json()?;
    // The lists of custom resources do not say it.
    if plan.gate == Gate::On && resource == Resource::ConfigMaps {
        ensure!(list["metadata"]["shardInfo"].is_object(), "the server does not shard: {path}");
    }
    let shown = |item: &Value| {
        let meta = &item["metadata"];
        let data = if item["data"].is_null() { &item["spec"] } else { &item["data"] };
        json!({
            "ns": meta["namespace"], "name": meta["name"], "uid": meta["uid"],
            "rv": meta["resourceVersion"], "labels": meta["labels"], "data": data,
        })
    };
    let items = list["items"].as_array().context("a list has items")?;
    let objects: Vec<Value> = items.iter().map(shown).collect();
    entries(&json!({ "objects": objects }), &plan.tenants)
}

fn start_informers(world: &World<'_>, directory: &Path) -> Result<Vec<Pair>> {
    let World { lane, plan, history, proxy, .. } = world;
    let through = proxy.kubeconfig(&lane.api, &lane.account.token)?;
    let straight = &lane.account.kubeconfig;
    let asked = plan.asked.as_ref().map(tier_selector);
    let asked = Selectors { label: asked, ..Selectors::default() };
    let namespaces: Vec<Option<String>> = match plan.native {
        _ if plan.changes => Vec::new(),
        Native::Fields => {
            plan.rule.namespaces(&plan.tenants, history.ranks()).into_iter().map(Some).collect()
        }
        _ => vec![None],
    };
    let mut pairs = Vec::new();
    for resource in Resource::ALL {
        let ours = Informer::start(plan, "ours", resource, &through, &asked, directory)?;
        let mut natives = Vec::new();
        for namespace in &namespaces {
            let name = format!("native {}", namespace.as_deref().unwrap_or_default());
            let selectors = native_selectors(plan, history.ranks(), namespace.as_deref());
            let native =
                Informer::start(plan, name.trim(), resource, straight, &selectors, directory)?;
            natives.push((namespace.clone(), native));
        }
        let companion = |at| {
            let name = format!("companion {at}");
            Informer::start(plan, &name, resource, &through, &asked, directory)
        };
        let companions = (0..plan.companions()).map(companion).collect::<Result<_>>()?;
        pairs.push(Pair { resource, natives, ours, companions, floor: 0, lists: (1, 1) });
    }
    for pair in &pairs {
        for informer in pair.companions.iter().chain([&pair.ours]) {
            informer.wait_synced()?;
        }
        for (_, native) in &pair.natives {
            native.wait_synced()?;
        }
    }
    Ok(pairs)
}

/// What an informer straight at the server asks for to see what the shard's client sees.
fn native_selectors(plan: &Plan, ranks: &Ranks, namespace: Option<&str>) -> Selectors {
    let rule = &plan.rule;
    let tiers: BTreeSet<&Option<BTreeSet<&'static str>>> =
        BTreeSet::from([&plan.asked, &rule.tiers]);
    let mut labels: Vec<String> =
        tiers.into_iter().flatten().map(|tiers| tier_selector(tiers)).collect();
    if plan.native == Native::Label {
        labels.push(rule.at_selector(&plan.tenants, ranks));
    }
    Selectors {
        label: (!labels.is_empty()).then(|| labels.join(",")),
        field: namespace.map(|namespace| format!("metadata.namespace={namespace}")),
        shard: rule.shard_selector().filter(|_| plan.native == Native::Shard),
    }
}

/// Everything that was printed, for the person who looks into it.
fn keep(world: &World<'_>, pairs: &[Pair], directory: &Path) -> Result<PathBuf> {
    let World { plan, proxy, .. } = world;
    let gate = format!("{:?}", plan.gate).to_lowercase();
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("oracle-{gate}-{}", plan.seed));
    fs::create_dir_all(&kept)?;
    let text = |lines: &[Value]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    fs::write(kept.join("proxy.log"), text(&proxy.log()?))?;
    for pair in pairs {
        for informer in pair.natives.iter().map(|(_, native)| native).chain([&pair.ours]) {
            let name = informer.name.replace([',', ' '], "-");
            fs::write(kept.join(format!("{name}.jsonl")), text(&informer.lines()))?;
        }
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        fs::copy(entry.path(), kept.join(entry.file_name()))?;
    }
    Ok(kept)
}
