//! One namespace: its bundle, its rights, its configs, its events.

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Event},
        rbac::v1::RoleBinding,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::api::DynamicObject;
use serde::Deserialize;

use super::{
    limits,
    pods::Pods,
    rights::{self, binds},
    words::{named, quoted},
};
use crate::doctor::{
    facts::{ManagerFacts, NamespaceFacts},
    finding::{Check, Findings},
};
use ctrlmesh_api::{Condition, ShardingConfigStatus, keys::OURS_LABEL};
use ctrlmesh_inject::companions::{BUNDLE_MAP, CA_KEY, OURS, ROLE};

/// The way into the mesh.
pub(super) const JOIN: &str = "write a ShardingConfig for each shard, and put the label \
                               ctrlmesh.kusionstack.io/enable-proxy: \"true\" on the pod template";
/// The age in seconds up to which an event is about the present.
const RECENT: i64 = 600;

pub(super) fn judge(
    facts: &NamespaceFacts,
    manager: &ManagerFacts,
    pods: &Pods<'_>,
    found: &mut Findings,
) {
    let name = &facts.name;
    let is_member = pods.has_configs() || pods.asking().next().is_some();
    let subject = format!("ConfigMap {name}/{BUNDLE_MAP}");
    if is_member && let Some(bundle) = found.seen(Check::Bundle, &subject, &facts.bundle) {
        self::bundle(bundle.as_ref(), &subject, found);
    }
    let accounts = pods.accounts();
    let subject = format!("RoleBinding {name}/{ROLE}");
    if !accounts.is_empty()
        && let Some(bindings) = found.seen(Check::Rights, &subject, &facts.bindings)
    {
        bound(bindings, name, &accounts, &subject, found);
    }
    rights::judge(&rights::LEASES, &pods.accounts_of_rings(name), facts, manager, found);
    for (account, names) in pods.locks(name) {
        rights::of_locks(account, &names, facts, manager, found);
    }
    configs(facts, pods, found);
    locks(facts, found);
    writes(facts, found);
    related(facts, found);
    if is_member {
        limits::judge(facts, manager, found);
    } else if facts.configs.is_ok() && facts.pods.is_ok() {
        found.warning(
            Check::Namespaces,
            format!("namespace {name}"),
            "has no ShardingConfig and no pod with the label",
            JOIN,
        );
    }
}

fn bundle(bundle: Option<&ConfigMap>, subject: &str, found: &mut Findings) {
    let check = Check::Bundle;
    let Some(bundle) = bundle else {
        found.error(
            check,
            subject,
            "is not there, so containers of injected pods cannot start",
            "see that a replica of the manager leads (D07): it writes this ConfigMap within seconds",
        );
        return;
    };
    let text = bundle.data.as_ref().and_then(|data| data.get(CA_KEY));
    if !is_ours(&bundle.metadata) {
        found.error(
            check,
            subject,
            format!("is someone else's: it has no label {OURS}"),
            "delete it, or give it that label: the manager writes it within seconds",
        );
    } else if text.is_none_or(|text| !text.contains("BEGIN CERTIFICATE")) {
        found.error(
            check,
            subject,
            format!("has no certificate in {CA_KEY}"),
            "see that a replica of the manager leads (D07): it restores this ConfigMap within seconds",
        );
    } else {
        found.ok(check, subject, "is there");
    }
}

fn is_ours(meta: &ObjectMeta) -> bool {
    let (label, value) = OURS_LABEL;
    meta.labels.as_ref().and_then(|labels| labels.get(label)).is_some_and(|is| is == value)
}

fn bound(
    bindings: &[RoleBinding],
    namespace: &str,
    accounts: &[&str],
    subject: &str,
    found: &mut Findings,
) {
    let ours = || bindings.iter().filter(|binding| binding.role_ref.name == ROLE);
    let is_bound = |account: &&str| ours().any(|binding| binds(binding, account, namespace));
    let (bound, missing): (Vec<&str>, Vec<&str>) = accounts.iter().copied().partition(is_bound);
    if missing.is_empty() {
        found.ok(Check::Rights, subject, format!("binds {}", named("account", &bound)));
        return;
    }
    let of_name = bindings.iter().find(|binding| binding.metadata.name.as_deref() == Some(ROLE));
    let foreign = of_name.filter(|binding| binding.role_ref.name != ROLE);
    let fix = match foreign {
        Some(_) => "delete this RoleBinding, which binds another role: the manager writes its own",
        None => {
            "see that a replica of the manager leads (D07): it writes this RoleBinding within \
                 seconds"
        }
    };
    found.error(
        Check::Rights,
        subject,
        format!(
            "proxies of injected pods may not read ShardingConfigs: it does not bind {}",
            named("account", &missing)
        ),
        fix,
    );
}

fn configs(facts: &NamespaceFacts, pods: &Pods<'_>, found: &mut Findings) {
    let subject = format!("ShardingConfigs of {}", facts.name);
    if found.seen(Check::Malformed, &subject, &facts.configs).is_none() {
        return;
    }
    let mut count = 0;
    for invalid in pods.malformed() {
        count += 1;
        let problems: Vec<_> = invalid.problems.iter().map(ToString::to_string).collect();
        found.error(
            Check::Malformed,
            invalid.object.to_string(),
            problems.join("; "),
            "correct the field: README.md and `kubectl explain shardingconfig.spec` say what it may be",
        );
    }
    let all = facts.configs.as_ref().map_or(0, Vec::len);
    if count == 0 && all > 0 {
        let plural = if all == 1 { " is" } else { "s are" };
        found.ok(Check::Malformed, subject, format!("{all} config{plural} well formed"));
    }
}

/// Tells the shards that were refused writes, or have written into namespaces of others, by the manager's
/// condition.
fn writes(facts: &NamespaceFacts, found: &mut Findings) {
    for (subject, condition) in conditions(facts, "WritesRefused") {
        match (&*condition.status, &*condition.reason) {
            ("False", "NoForeignWrites") => {
                found.ok(Check::Writes, subject, "its pods write into its own namespaces alone");
            }
            ("True" | "False", _) => found.warning(
                Check::Writes,
                subject,
                quoted(&condition.message),
                "do what the message says: it has the entry of spec.fence.except",
            ),
            _ => {}
        }
    }
}

/// Tells the shards whose controllers watch what belongs to limited objects and is not limited, by the manager's
/// condition.
fn related(facts: &NamespaceFacts, found: &mut Findings) {
    for (subject, condition) in conditions(facts, "RelatedResourcesLimited") {
        match &*condition.status {
            "True" => {
                found.ok(Check::Related, subject, "its limits name all that belongs together")
            }
            "False" => found.warning(
                Check::Related,
                subject,
                quoted(&condition.message),
                "do what the message says: it has the entry of relateResources",
            ),
            _ => {}
        }
    }
}

/// The conditions of this type, each with its config.
fn conditions(facts: &NamespaceFacts, of: &str) -> Vec<(String, Condition)> {
    let of = |config: &DynamicObject| {
        let status = ShardingConfigStatus::deserialize(config.data.get("status")?).ok()?;
        let condition = status.conditions.into_iter().find(|one| one.r#type == of)?;
        let name = config.metadata.name.as_deref().unwrap_or_default();
        Some((format!("ShardingConfig {}/{name}", facts.name), condition))
    };
    facts.configs.iter().flatten().filter_map(of).collect()
}

/// Tells the shards that do not lead, by the manager's condition.
fn locks(facts: &NamespaceFacts, found: &mut Findings) {
    for (subject, condition) in conditions(facts, "LocksRenamed") {
        let says = quoted(&condition.message);
        match (&*condition.status, &*condition.reason) {
            ("True", _) => found.ok(Check::Locks, subject, "its shard holds its locks"),
            ("False", "Forbidden" | "NotHeld") => found.error(
                Check::Locks,
                subject,
                says,
                "name the lock that the controller uses in spec.controller, in its namespace; the role \
                 ctrlmesh-proxy gives the right to the shard's own",
            ),
            ("False", _) => found.warning(
                Check::Locks,
                subject,
                says,
                "do what the message says, and restart the pods of the shard",
            ),
            _ => {}
        }
    }
}

/// Judges the events of pods that could not be created for a reason of ours.
pub(super) fn refused(facts: &NamespaceFacts, now: Timestamp, found: &mut Findings) {
    let (check, subject) = (Check::Refused, format!("events of {}", facts.name));
    let Some(events) = found.seen(check, &subject, &facts.refused) else { return };
    let ours: Vec<_> = events.iter().filter(|event| is_about_us(event, now)).collect();
    if ours.is_empty() {
        let says = "no pod was refused for a reason of ctrlmesh in the last 10 minutes";
        found.ok(check, subject, says);
    }
    for event in ours {
        let message = event.message.as_deref().unwrap_or_default();
        let of = &event.involved_object;
        let [kind, name] = [&of.kind, &of.name].map(|text| text.as_deref().unwrap_or_default());
        let fix = if message.contains("failed calling webhook") {
            "see that the manager is ready (D05, D06): the pod is created after a back-off"
        } else {
            "do what the message says: the pod is created after a back-off"
        };
        found.error(check, format!("{kind} {}/{name}", facts.name), quoted(message), fix);
    }
}

fn is_about_us(event: &Event, now: Timestamp) -> bool {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let micro = series.or(event.event_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0).max(micro);
    let is_recent = last.is_none_or(|last| now.as_second() - last.as_second() <= RECENT);
    let message = event.message.as_deref().unwrap_or_default();
    is_recent && event.reason.as_deref() == Some("FailedCreate") && message.contains("ctrlmesh")
}
