//! Findings from facts: a function of values, without socket and clock.

mod limits;
mod manager;
mod members;
mod namespace;
mod one_pod;
mod pods;
mod proxy;
mod reviews;
mod rights;
mod words;

use k8s_openapi::jiff::Timestamp;

use super::{
    facts::{CannotLook, Facts, OwnFile, Server},
    finding::{Check, Finding, Findings},
};

/// The difference of two clocks in seconds from which on certificates and tokens may be refused.
const CLOCKS: i64 = 60;

/// The findings, in the order of the checks for each subject.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found = Findings::default();
    let subject = "API server";
    match &facts.server {
        Ok(Server { version, date }) => {
            found.ok(Check::ApiServer, subject, format!("answers, version {version}"));
            clock(facts.here, *date, &mut found);
        }
        Err(CannotLook::Failed(why)) => found.error(
            Check::ApiServer,
            subject,
            format!("does not answer: {why}"),
            "see that the kubeconfig, or the pod's ServiceAccount, names an API server that can be \
             reached, and an account that it knows",
        ),
        Err(CannotLook::Right { .. }) => {
            found.seen(Check::ApiServer, subject, &facts.server);
        }
    }
    // What the cluster wrote is compared with the cluster's clock.
    let date = facts.server.as_ref().ok().and_then(|server| server.date);
    let now = date.unwrap_or(facts.here);
    if let Some(cluster) = &facts.cluster {
        manager::judge(&cluster.manager, now, &mut found);
        let wanted = facts.pod.as_ref().map(|pod| pod.name.as_str());
        members::judge(cluster, wanted, now, &mut found);
    }
    if let Some(pod) = &facts.pod {
        one_pod::judge(pod, now, &mut found);
    }
    facts.files.iter().for_each(|file| own_file(file, &mut found));
    found.0
}

fn clock(here: Timestamp, date: Option<Timestamp>, found: &mut Findings) {
    let subject = "clock";
    let Some(date) = date else {
        let says = "the API server's answer has no Date to compare this machine's clock with";
        let fix = "compare the output of `date -u` on both machines";
        found.warning(Check::Clock, subject, says, fix);
        return;
    };
    let ahead = here.as_second() - date.as_second();
    if ahead.abs() <= CLOCKS {
        found.ok(Check::Clock, subject, format!("within {CLOCKS} s of the API server's"));
        return;
    }
    let side = if ahead > 0 { "ahead of" } else { "behind" };
    found.warning(
        Check::Clock,
        subject,
        format!("this machine's clock is {} s {side} the API server's", ahead.abs()),
        "synchronize the clocks of both: certificates and tokens are judged by them",
    );
}

fn own_file(OwnFile { path, problem }: &OwnFile, found: &mut Findings) {
    match problem {
        None => found.ok(Check::Files, path, "can be used"),
        Some(problem) => found.error(
            Check::Files,
            path,
            problem,
            "look for events of the pod about its volumes: the kubelet writes this file from the \
             ConfigMap ctrlmesh-ca-bundle, a token, or the pod's labels",
        ),
    }
}

#[cfg(test)]
mod tests;
