//! An operator in two shards deletes objects that lack a parent and creates missing children. Its
//! namespace moves from one shard to the other. No child is deleted, and none is made twice.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    env,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, Proxy, Rule, go_clients, until};
use serde_json::{Value, json};

use crate::direct::bed::{Bed, LIMIT, seconds, sharding_config};

/// The parents in the namespace that moves.
const PARENTS: usize = 60;
const ROLE: &str = "family.example.com/role";
const PARENT: &str = "family.example.com/parent";

/// The policy of a shard with these namespaces.
fn policy(namespaces: &[&str], mode: &str) -> String {
    let core = json!([{ "apiGroups": [""], "resources": ["configmaps", "secrets"] }]);
    let mut config = sharding_config(
        "mine",
        &[json!({
            "relateResources": core,
            "namespaces": { "names": namespaces },
            "clusterScoped": "Exclude",
        })],
    );
    config["spec"]["fence"] = json!({ "mode": mode });
    config.to_string()
}

/// A shard, and its operator.
struct Shard<'b> {
    own: &'static str,
    bed: &'b Bed,
    mode: &'static str,
    proxy: Proxy,
    operator: Program,
    /// The times between which it had the namespace of the test, in seconds since 1970.
    had: RefCell<Vec<[f64; 2]>>,
}

impl<'b> Shard<'b> {
    fn start(
        bed: &'b Bed,
        own: &'static str,
        namespaces: &[&str],
        mode: &'static str,
        flags: &[&str],
    ) -> Result<Self> {
        let account = format!("{own}-{}", bed.namespace);
        let account = bed.api.service_account(&bed.namespace, &account, &[Rule::all()])?;
        let proxy =
            Proxy::builder("mine", &policy(namespaces, mode)).keeps_state().start(&bed.api)?;
        let mut command = Command::new(go_clients()?);
        command.arg("family").args(flags);
        command.arg("--kubeconfig").arg(proxy.kubeconfig(&bed.api, &account.token)?);
        let operator = bed.program("family", &command)?;
        operator.wait_for(LIMIT, |line| line["event"] == "ready").context("the operator starts")?;
        let has_it = namespaces.contains(&&*bed.namespace);
        let had = if has_it { vec![[0.0, f64::INFINITY]] } else { Vec::new() };
        Ok(Self { own, bed, mode, proxy, operator, had: RefCell::new(had) })
    }

    /// Has the namespace of the test from now on, or not: returns once both watches show it.
    fn has(&self, has_it: bool) -> Result<()> {
        let changed = || self.proxy.metric(r#"ctrlmesh_stream_changes_total{how="difference"}"#);
        let before = changed()?;
        let mut namespaces = vec![self.own];
        namespaces.extend(has_it.then_some(&*self.bed.namespace));
        if has_it {
            self.had.borrow_mut().push([now(), f64::INFINITY]);
        }
        self.proxy.change_policy(&policy(&namespaces, self.mode))?;
        if !has_it && let Some(had) = self.had.borrow_mut().last_mut() {
            had[1] = now();
        }
        until(
            "both watches show the move",
            LIMIT,
            || Ok((changed()? >= before + 2.0).then_some(())),
        )
    }

    /// The API server took no write of it in the namespace of the test but while it had that. Returns the
    /// number of its writes there.
    fn wrote_its_own_alone(&self) -> Result<usize> {
        let (namespace, own) = (&self.bed.namespace, self.own);
        let user = format!("system:serviceaccount:{namespace}:{own}-{namespace}");
        let mut writes = 0;
        for entry in self.bed.api.audit().entries()? {
            let of = entry.object_ref.unwrap_or_default();
            let is_write = ["create", "delete", "deletecollection"].contains(&entry.verb.as_str());
            let is_taken = entry.response_status.as_ref().is_some_and(|status| status.code < 300);
            if !is_write || !is_taken || entry.user.username != user || of.namespace != *namespace {
                continue;
            }
            writes += 1;
            let at = seconds(&entry.request_received_timestamp)?;
            let had = self.had.borrow();
            ensure!(
                had.iter().any(|[from, to]| *from <= at && at <= *to),
                "{own} wrote {} at {at}, and had the namespace {had:?}",
                of.name
            );
        }
        Ok(writes)
    }

    fn count(&self, event: &str) -> usize {
        self.operator.lines().iter().filter(|line| line["event"] == event).count()
    }

    /// The answers of the fence, by their verdicts.
    fn refused(&self) -> Result<[f64; 2]> {
        let of = |verdict: &str| {
            let series =
                format!(r#"ctrlmesh_fence_total{{resource="secrets",verdict="{verdict}"}}"#);
            self.proxy.metric(&series)
        };
        Ok([of("moved")?, of("gained")?])
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn parent(bed: &Bed, name: &str) -> Result<()> {
    bed.config_map(name, &format!("{ROLE}=parent")).map(drop)
}

/// The uids of the children, by their parents.
fn children(bed: &Bed) -> Result<BTreeMap<String, Vec<String>>> {
    let path = format!("{}?labelSelector={ROLE}%3Dchild", bed.path("secrets"));
    let list: Value = bed.api.client().get(&path)?.json()?;
    let mut children: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for child in list["items"].as_array().context("a list")? {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &child["metadata"];
        children.entry(text(&meta["labels"][PARENT])).or_default().push(text(&meta["uid"]));
    }
    Ok(children)
}

/// Moves the namespace of a family out and back until `is_over` says so. `is_over` gets the number
/// of moves, and whether the children are the same as at first. Returns the number of moves, and
/// the answers of the fence.
fn moves(
    name: &str,
    mode: &'static str,
    flags: &[&str],
    mut is_over: impl FnMut(usize, bool) -> bool,
) -> Result<(usize, [f64; 2])> {
    let bed = Bed::new(name)?;
    let blue = Shard::start(&bed, "blue", &["blue", &bed.namespace], mode, flags)?;
    let green = Shard::start(&bed, "green", &["green"], mode, flags)?;
    for at in 0..PARENTS {
        parent(&bed, &format!("p{at:02}"))?;
    }
    let are_made = |of: &BTreeMap<_, Vec<_>>, count: usize| of.len() == count;
    let first = until("a child of each parent", LIMIT, || {
        Ok(Some(children(&bed)?).filter(|of| are_made(of, PARENTS)))
    })?;
    let mut count = 0;
    while !is_over(count, children(&bed)? == first) {
        let [loser, gainer] = if count % 2 == 0 { [&blue, &green] } else { [&green, &blue] };
        loser.has(false)?;
        gainer.has(true)?;
        count += 1;
    }
    // Who has the namespace works, also on what it was refused.
    parent(&bed, "last")?;
    let last = until("the last child", LIMIT, || {
        let mut now = children(&bed)?;
        Ok(now.remove("last").map(|_| now))
    })?;
    ensure!(
        mode != "Enforce" || last == first,
        "{} children are other ones; deleted by blue {}, by green {}",
        first.iter().filter(|(parent, uids)| last.get(*parent) != Some(*uids)).count(),
        blue.count("deleted"),
        green.count("deleted")
    );
    if mode == "Enforce" {
        let writes = blue.wrote_its_own_alone()? + green.wrote_its_own_alone()?;
        ensure!(writes > PARENTS, "{writes} writes are in the audit log");
    }
    let [of_blue, of_green] = [blue.refused()?, green.refused()?];
    Ok((count, [of_blue[0] + of_green[0], of_blue[1] + of_green[1]]))
}

fn keeps_its_children(style: &str) -> Result<()> {
    let count = env::var("MOVES").ok().map_or(Ok(2), |moves| moves.parse::<usize>())?;
    for (http, flag) in [("http2", None), ("http1", Some("--http1"))] {
        let mut flags = vec!["--style", style];
        flags.extend(flag);
        let name = format!("family-{style}-{http}");
        let (moves, [moved, gained]) = moves(&name, "Enforce", &flags, |now, _| now == count)
            .with_context(|| format!("{style}, {http}"))?;
        println!(
            "families: {style}, {http}: {moves} moves; {PARENTS} children are the same; refused were {moved} \
             writes of the loser, {gained} deletes and creates of the gainer"
        );
    }
    Ok(())
}

#[test]
fn an_operator_that_deletes_what_lacks_an_owner_keeps_its_children_in_a_move() -> Result<()> {
    keeps_its_children("owner")
}

#[test]
fn an_operator_that_finds_children_by_label_keeps_them_in_a_move() -> Result<()> {
    keeps_its_children("label")
}

#[test]
fn an_operator_that_generates_names_keeps_its_children_in_a_move() -> Result<()> {
    keeps_its_children("generated")
}

#[test]
fn without_the_fence_the_same_operator_loses_children_in_a_move() -> Result<()> {
    let (moves, _) = moves("family-warned", "Warn", &["--style", "label"], |now, are_same| {
        !are_same || now == 20
    })?;
    ensure!(moves < 20, "it has lost no child in {moves} moves");
    println!("families: without the fence a child is lost by move {moves}");
    Ok(())
}
