//! What a seed happens in, and how the boundary moves there under a running proxy: by another
//! policy, or by other labels of namespaces under the same one.

use std::{thread, time::Duration};

use anyhow::{Context, Result};
use ctrlmesh_e2e::{ApiServer, Client, Proxy, until};

use crate::oracle::{
    history::{History, Resource},
    informer::LIMIT,
    lane::Lane,
    plan::{Disruption, Plan},
    rule::Rule,
};

/// Writes before a boundary moves, and while its policy comes into force.
const STEPS_MEANWHILE: usize = 20;
/// client-go pauses for 0.8 s first.
const AWAY: Duration = Duration::from_secs(3);

/// The API server, the plan, the history of writes, and the proxy.
pub(crate) struct World<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) plan: Plan,
    pub(crate) history: History<'a>,
    pub(crate) proxy: Proxy,
    /// Whether a client may have to list again: what it was shown last is compacted, or its API server
    /// or its proxy's memory has gone.
    pub(crate) may_expire: bool,
}

impl World<'_> {
    /// The controller, which asks through the proxy.
    pub(crate) fn client(&self) -> Result<Client> {
        self.proxy.client(&self.lane.account.token)
    }

    /// The number of the policy in force, of which the proxy has had as many. Its log may not say
    /// so yet.
    pub(crate) fn epoch(&self) -> Result<f64> {
        self.proxy.metric("ctrlmesh_policy_epoch")
    }

    /// The number of changes that are in force as a whole, of a shard in a ring.
    fn handovers(&self) -> Result<f64> {
        self.proxy.metric("ctrlmesh_handover_seconds_count")
    }

    pub(crate) fn disrupt(&mut self, what: Disruption) -> Result<()> {
        self.may_expire |= what != Disruption::ProxyKill || !self.plan.keeps_state;
        let (api, proxy) = (&self.lane.api, &mut self.proxy);
        match what {
            Disruption::Compaction => api.compact().map(drop),
            Disruption::Restart => api.stop().and_then(|()| start_again(api)),
            Disruption::Kill => api.kill().and_then(|()| start_again(api)),
            Disruption::ProxyKill => {
                let killed = proxy.kill();
                pass(AWAY);
                killed.and_then(|()| proxy.start_again())
            }
        }
        .with_context(|| format!("{what:?}"))?;
        until("the proxy has its policy", LIMIT, || {
            let ready = proxy.admin_text("/readyz")?;
            Ok(ready.contains("[+]policy ok").then_some(()))
        })
    }

    /// Gives the proxy a policy that says `rule`.
    fn draw(&self, rule: &Rule) -> Result<()> {
        let policy = policy(&self.plan, rule);
        if self.plan.of_cluster {
            apply_config(self.lane, &policy)
        } else {
            self.proxy.set_policy(&policy).map(drop)
        }
    }
}

/// Starts the API server again and waits until it serves the resources of histories. It is ready
/// before its caches are filled, and until then answers a list or a deletion of a collection by 429.
fn start_again(api: &ApiServer) -> Result<()> {
    api.start_again()?;
    until("the API server serves all resources", LIMIT, || {
        for resource in Resource::ALL {
            if api.client().get(&resource.path(None))?.status != 200 {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
}

/// Moves the boundary while writes go on, once or twice in a row.
pub(crate) fn change(world: &mut World<'_>, mut disruption: Option<Disruption>) -> Result<()> {
    world.history.go_on(STEPS_MEANWHILE, None)?;
    // Where nothing was written since, nothing can be compacted again.
    if disruption != Some(Disruption::Compaction) && world.plan.some_in(6) {
        // What clients were shown last cannot be listed any more.
        world.may_expire = true;
        world.lane.api.compact()?;
    }
    for _ in 0..if world.plan.some_in(3) { 2 } else { 1 } {
        let disruption = disruption.take();
        if world.plan.rule.own_rank().is_some() && !world.plan.some_in(3) {
            relabel(world, disruption)?;
        } else {
            redraw(world, disruption)?;
        }
    }
    Ok(())
}

/// Moves namespaces across the boundary.
fn relabel(world: &mut World<'_>, disruption: Option<Disruption>) -> Result<()> {
    let count = if world.plan.some_in(2) { 2 } else { 1 };
    world.history.move_namespaces(&world.plan.rule, count)?;
    meanwhile(world, disruption)?;
    // Else what comes next comes while this does.
    let client = world.client()?;
    let World { plan, history, .. } = world;
    if plan.some_in(2) { history.settle(&client, &plan.rule) } else { Ok(()) }
}

/// Gives the proxy another rule.
fn redraw(world: &mut World<'_>, disruption: Option<Disruption>) -> Result<()> {
    let old = world.plan.rule.clone();
    let rule = world.plan.next_rule();
    if rule.own_rank().is_some() {
        world.draw(&rule)?;
        // A proxy that does not know this rule yet may be given the next one instead.
        return meanwhile(world, disruption);
    }
    if old.own_rank().is_some() {
        // The next policy that comes into force is to be that of the new rule.
        let client = world.client()?;
        world.history.settle(&client, &old)?;
        world.history.keep_namespaces_of(Some(&old));
    }
    let (epoch, handovers) = (world.epoch()?, world.handovers()?);
    world.draw(&rule)?;
    meanwhile(world, disruption)?;
    world.history.keep_namespaces_of(None);
    if world.plan.in_ring {
        // The part that takes objects away is in force first.
        until("the change is in force as a whole", LIMIT, || {
            Ok((world.handovers()? > handovers).then_some(()))
        })?;
    } else if disruption != Some(Disruption::ProxyKill) {
        // Else it has known no other rule.
        world.proxy.wait_for_line(LIMIT, |line| {
            line["message"] == "policy in force" && line["epoch"].as_f64() == Some(epoch + 1.0)
        })?;
    }
    Ok(())
}

fn meanwhile(world: &mut World<'_>, disruption: Option<Disruption>) -> Result<()> {
    if let Some(what) = disruption {
        world.disrupt(what)?;
    }
    let steps = if world.plan.some_in(2) { STEPS_MEANWHILE } else { 0 };
    world.history.go_on(steps, None)
}

pub(crate) fn start_proxy(lane: &Lane, plan: &Plan) -> Result<Proxy> {
    let policy = policy(plan, &plan.rule);
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
        if plan.in_ring {
            let uid = format!("{:08x}-0000-4000-8000-000000000000", plan.seed);
            builder = builder.env("POD_NAME", "mine-0").env("POD_UID", &uid);
        }
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

/// The config that says a rule.
fn policy(plan: &Plan, rule: &Rule) -> String {
    let mut policy = rule.policy(&plan.tenants);
    if plan.in_ring {
        // One of its own: the Lease of the last seed is another pod's.
        policy["spec"]["ring"] = format!("seed-{:x}", plan.seed).into();
    }
    policy.to_string()
}

fn apply_config(lane: &Lane, policy: &str) -> Result<()> {
    let root = "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces";
    let path = format!("{root}/{}/shardingconfigs/mine", lane.account.namespace);
    let target = format!("{path}?fieldManager=test&force=true");
    let kind = "application/apply-patch+yaml";
    let body = policy.as_bytes().to_vec();
    lane.api.client().request("PATCH", &target, kind, body)?.json().map(drop)
}

#[allow(clippy::disallowed_methods, reason = "the absence is as long as it is said to be")]
fn pass(time: Duration) {
    thread::sleep(time);
}
