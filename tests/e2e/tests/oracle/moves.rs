//! How the boundary moves under a running proxy: by another policy, or by other labels of
//! namespaces under the same one.

use anyhow::{Context, Result};
use ctrlmesh_e2e::{ApiServer, Client, Proxy, until};

use crate::{
    history::History,
    informer::LIMIT,
    lane::Lane,
    plan::{Disruption, Plan},
    rule::Rule,
};

/// Writes before a boundary moves, and while its policy comes into force.
const STEPS_MEANWHILE: usize = 20;

/// Moves the boundary while writes go on, once or twice in a row.
pub(crate) fn change(
    lane: &Lane,
    plan: &mut Plan,
    history: &mut History<'_>,
    proxy: &mut Proxy,
    mut disruption: Option<Disruption>,
) -> Result<()> {
    history.go_on(STEPS_MEANWHILE, None)?;
    // Where nothing was written since, nothing can be compacted again.
    if disruption != Some(Disruption::Compaction) && plan.some_in(6) {
        // What clients were shown last cannot be listed any more.
        lane.api.compact()?;
    }
    for _ in 0..if plan.some_in(3) { 2 } else { 1 } {
        let disruption = disruption.take();
        if plan.rule.own_rank().is_some() && !plan.some_in(3) {
            relabel(lane, plan, history, proxy, disruption)?;
        } else {
            redraw(lane, plan, history, proxy, disruption)?;
        }
    }
    Ok(())
}

/// Moves namespaces across the boundary.
fn relabel(
    lane: &Lane,
    plan: &mut Plan,
    history: &mut History<'_>,
    proxy: &mut Proxy,
    disruption: Option<Disruption>,
) -> Result<()> {
    let count = if plan.some_in(2) { 2 } else { 1 };
    history.move_namespaces(&plan.rule, count)?;
    meanwhile(lane, plan, history, proxy, disruption)?;
    // Else what comes next comes while this does.
    if plan.some_in(2) { history.settle(&client(lane, proxy)?, &plan.rule) } else { Ok(()) }
}

/// Gives the proxy another rule.
fn redraw(
    lane: &Lane,
    plan: &mut Plan,
    history: &mut History<'_>,
    proxy: &mut Proxy,
    disruption: Option<Disruption>,
) -> Result<()> {
    let old = plan.rule.clone();
    let rule = plan.next_rule();
    if rule.own_rank().is_some() {
        draw(lane, plan, proxy, &rule)?;
        // A proxy that does not know this rule yet may be given the next one instead.
        return meanwhile(lane, plan, history, proxy, disruption);
    }
    if old.own_rank().is_some() {
        // The next policy that comes into force is to be that of the new rule.
        history.settle(&client(lane, proxy)?, &old)?;
        history.keep_namespaces_of(Some(&old));
    }
    let epoch = epoch(proxy)?;
    draw(lane, plan, proxy, &rule)?;
    meanwhile(lane, plan, history, proxy, disruption)?;
    history.keep_namespaces_of(None);
    if disruption != Some(Disruption::ProxyKill) {
        // Else it has known no other rule.
        proxy.wait_for_line(LIMIT, |line| {
            line["message"] == "policy in force" && line["epoch"].as_f64() == Some(epoch + 1.0)
        })?;
    }
    Ok(())
}

fn meanwhile(
    lane: &Lane,
    plan: &mut Plan,
    history: &mut History<'_>,
    proxy: &mut Proxy,
    disruption: Option<Disruption>,
) -> Result<()> {
    if let Some(what) = disruption {
        disrupt(&lane.api, proxy, what)?;
    }
    let steps = if plan.some_in(2) { STEPS_MEANWHILE } else { 0 };
    history.go_on(steps, None)
}

/// The number of the policy in force, of which the proxy has had as many. Its log may not say so
/// yet.
pub(crate) fn epoch(proxy: &Proxy) -> Result<f64> {
    proxy.metric("ctrlmesh_policy_epoch")
}

/// The controller, which asks through the proxy.
pub(crate) fn client(lane: &Lane, proxy: &Proxy) -> Result<Client> {
    proxy.client(&lane.account.token)
}

pub(crate) fn disrupt(api: &ApiServer, proxy: &mut Proxy, what: Disruption) -> Result<()> {
    match what {
        Disruption::Compaction => api.compact().map(drop),
        Disruption::Restart => api.stop().and_then(|()| api.start_again()),
        Disruption::Kill => api.kill().and_then(|()| api.start_again()),
        Disruption::ProxyKill => proxy.kill().and_then(|()| proxy.start_again()),
    }
    .with_context(|| format!("{what:?}"))?;
    until("the proxy has its policy", LIMIT, || {
        let ready = proxy.admin_text("/readyz")?;
        Ok(ready.contains("[+]policy ok").then_some(()))
    })
}

pub(crate) fn start_proxy(lane: &Lane, plan: &Plan) -> Result<Proxy> {
    let policy = plan.rule.policy(&plan.tenants).to_string();
    let mut builder = Proxy::builder("mine", &policy);
    if !plan.pushdown {
        builder = builder.env("CTRLMESH_PUSHDOWN", "off");
    }
    if plan.keeps_state {
        builder = builder.keeps_state();
    }
    let kubeconfig = &lane.account.kubeconfig;
    if plan.of_cluster {
        apply_config(lane, &policy)?;
        builder = builder.policy_of_cluster(kubeconfig, &lane.account.namespace);
    } else {
        // By which it learns the labels of namespaces.
        builder = builder.env("KUBECONFIG", &kubeconfig.display().to_string());
    }
    let proxy = builder.start(&lane.api)?;
    until("the proxy has its policy", LIMIT, || {
        Ok(proxy.admin_text("/readyz")?.contains("[+]policy ok: mine epoch 1\n").then_some(()))
    })?;
    Ok(proxy)
}

fn draw(lane: &Lane, plan: &Plan, proxy: &Proxy, rule: &Rule) -> Result<()> {
    let policy = rule.policy(&plan.tenants).to_string();
    if plan.of_cluster { apply_config(lane, &policy) } else { proxy.set_policy(&policy).map(drop) }
}

fn apply_config(lane: &Lane, policy: &str) -> Result<()> {
    let root = "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces";
    let path = format!("{root}/{}/shardingconfigs/mine", lane.account.namespace);
    let target = format!("{path}?fieldManager=test&force=true");
    let kind = "application/apply-patch+yaml";
    let body = policy.as_bytes().to_vec();
    lane.api.client().request("PATCH", &target, kind, body)?.json().map(drop)
}
