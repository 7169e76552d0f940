//! Who the API server sees: the client, and no one else.

use std::{collections::HashSet, process::Command};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{AuditEntry, Proxy, Rule};
use serde_json::{Value, json};

use crate::direct::bed::{Bed, LIMIT, Way, config_maps, output};

/// A user agent that only one test has.
fn mark(test: &str) -> String {
    let unique: String = std::iter::repeat_with(fastrand::lowercase).take(6).collect();
    format!("{test}-{unique}")
}

fn is_of(entry: &AuditEntry, mark: &str) -> bool {
    entry.user_agent.as_deref().is_some_and(|agent| agent.starts_with(mark))
}

#[test]
fn t63_audit_names_the_service_account_for_every_request() -> Result<()> {
    let bed = Bed::new("t63")?;
    let mut proxy = bed.proxy(&["a"])?;
    let way = Way::Through(&proxy);
    for encoding in ["--json", "--protobuf"] {
        for version in ["--http1", "--http1=false"] {
            let name = format!("--name=verbs{encoding}");
            bed.clients(&way, "verbs", &[encoding, version, "--labels=team=a", &name])?
                .finish(LIMIT)?;
        }
    }
    let informer = bed.clients(&way, "informer", &[])?;
    informer.wait_for(LIMIT, |line| line["event"] == "synced")?;
    informer.finish(LIMIT)?;
    proxy.kubectl(&bed.api, bed.token())?.run(&["--namespace", &bed.namespace, "get", "cm"])?;
    output(&mut bed.curl(&way, &bed.path("configmaps")))?;
    proxy.stop()?;

    let log = proxy.log()?;
    let is_passed =
        |line: &&Value| line["target"] == "access" && line["namespace"] == *bed.namespace;
    let requests = log.iter().filter(is_passed).count();
    // The bed made the namespace and its account; all else in it came through the proxy.
    let is_of_the_bed = |entry: &AuditEntry| is_of(entry, "ureq/");
    let is_here = |entry: &AuditEntry| {
        entry.object_ref.as_ref().is_some_and(|object| object.namespace == bed.namespace)
            && !is_of_the_bed(entry)
    };
    let mut ids = HashSet::new();
    bed.api
        .audit()
        .reader()?
        .wait_for(LIMIT, |entry| {
            if is_here(entry) {
                ids.insert(entry.audit_id.clone());
            }
            ids.len() == requests
        })
        .context("not every request that was passed has arrived")?;
    let entries = bed.api.audit().entries()?;
    let here: Vec<_> = entries.iter().filter(|entry| is_here(entry)).collect();
    let users: HashSet<_> = here.iter().map(|entry| entry.user.username.clone()).collect();
    let arrived: HashSet<_> = here.iter().map(|entry| &entry.audit_id).collect();
    println!("t63: {requests} requests through the proxy, all of {users:?}");
    ensure!(requests > 60, "{requests} requests are not all verbs");
    ensure!(users == HashSet::from([bed.account.user()]), "{users:?}");
    ensure!(arrived.len() == requests, "{} arrived, {requests} were passed", arrived.len());
    let of_ours = |entry: &&AuditEntry| is_of(entry, "ctrlmesh");
    ensure!(entries.iter().find(of_ours).is_none(), "the proxy has asked for something itself");
    Ok(())
}

#[test]
fn t63_no_token_goes_out_as_nobody() -> Result<()> {
    let bed = Bed::new("t63_nobody")?;
    // One that has to ask what clients may hold, and must not do so for no one.
    let proxy = Proxy::builder("mine", &config_maps(&["a"])).start(&bed.api)?;
    let way = Way::Through(&proxy);
    let mark = mark("t63n");
    for version in ["--http1.1", "--http2"] {
        let mut curl = bed.curl_without_token(&way);
        curl.args([version, "--user-agent", &mark, "-H", "Accept: application/json"]);
        let status: Value = serde_json::from_slice(&output(curl.arg(format!(
            "{}{}",
            proxy.url(),
            bed.path("configmaps")
        )))?)?;
        ensure!(status["code"] == 403, "{status}");
        ensure!(status["message"].as_str().context("text")?.contains("system:anonymous"));
    }
    let entry = bed.api.audit().reader()?.wait_for(LIMIT, |entry| is_of(entry, &mark))?;
    ensure!(entry.user.username == "system:anonymous", "{:?}", entry.user);
    for version in ["--http1.1", "--http2"] {
        let mut bad = bed.curl_without_token(&way);
        bad.args([version, "-o", "/dev/null", "-w", "%{http_code}"]);
        bad.args(["-H", "Authorization: Bearer wrong"]);
        let code = output(bad.arg(format!("{}{}", proxy.url(), bed.path("configmaps"))))?;
        ensure!(code == b"401", "{version}: {}", String::from_utf8_lossy(&code));
    }
    Ok(())
}

#[test]
fn t63_each_request_of_a_connection_has_its_own_user() -> Result<()> {
    let bed = Bed::new("t63_each")?;
    let mut proxy = bed.proxy(&["a"])?;
    let other = bed.api.service_account(&bed.namespace, "other", &[Rule::all()])?;
    let mark = mark("t63e");
    let url = format!("{}{}", proxy.url(), bed.path("configmaps"));
    for version in ["--http1.1", "--http2"] {
        let mut curl = bed.curl_without_token(&Way::Through(&proxy));
        let ca = proxy.ca_file().display().to_string();
        for (at, token) in [bed.token(), &other.token, bed.token()].iter().enumerate() {
            if at > 0 {
                curl.args(["--next", "-sS", "--noproxy", "*", "--cacert", &ca]);
            }
            curl.args([version, "--fail", "--user-agent", &format!("{mark}{version}")]);
            curl.args(["-H", &format!("Authorization: Bearer {token}"), &url]);
        }
        output(&mut curl)?;
    }
    proxy.stop()?;
    let log = proxy.log()?;
    let connections: HashSet<u64> = log
        .iter()
        .filter(|line| line["target"] == "access")
        .filter_map(|line| line["connection"].as_u64())
        .collect();
    ensure!(connections.len() == 2, "one connection a version: {connections:?}");
    for version in ["--http1.1", "--http2"] {
        let mut users = Vec::new();
        bed.api.audit().reader()?.wait_for(LIMIT, |entry| {
            if is_of(entry, &format!("{mark}{version}")) {
                users.push(entry.user.username.clone());
            }
            users.len() == 3
        })?;
        let (first, second) = (bed.account.user(), other.user());
        ensure!(users == [first.clone(), second, first], "{version}: {users:?}");
    }
    Ok(())
}

#[test]
fn t64_a_client_certificate_is_not_an_identity_here() -> Result<()> {
    let bed = Bed::new("t64")?;
    let proxy = bed.proxy(&["a"])?;
    let (certificate, key) = bed.api.admin_certificate();
    for version in ["--http1.1", "--http2"] {
        let mut curl = bed.curl_without_token(&Way::Through(&proxy));
        curl.arg(version).arg("--cert").arg(&certificate).arg("--key").arg(&key);
        let url = format!("{}{}", proxy.url(), bed.path("configmaps"));
        let status: Value = serde_json::from_slice(&output(curl.arg(url))?)?;
        ensure!(status["code"] == 403, "{status}");
        let message = status["message"].as_str().context("text")?;
        ensure!(message.contains("system:anonymous"), "{message}");
    }
    Ok(())
}

/// Status line and headers of an answer, in lower case, and its body.
fn whole(curl: &mut Command) -> Result<(String, String)> {
    let text = String::from_utf8(output(curl.arg("-i"))?)?;
    let (head, body) = text.split_once("\r\n\r\n").context("an answer has a head")?;
    Ok((head.to_lowercase(), body.to_owned()))
}

#[test]
fn t67_connection_strips_no_header() -> Result<()> {
    let bed = Bed::new("t67")?;
    let proxy = bed.proxy(&["a"])?;
    let maps = bed.path("configmaps");
    let mut curl = bed.curl(&Way::Through(&proxy), &maps);
    curl.args(["--http1.1", "-H", "Connection: Authorization"]);
    let (head, _) = whole(&mut curl)?;
    ensure!(head.contains(" 200"), "{head}");
    let mut curl = bed.curl(&Way::Through(&proxy), &maps);
    curl.args(["--http1.1", "-H", "Connection: close, Impersonate-User"]);
    curl.args(["-H", "Impersonate-User: jane"]);
    let (head, body) = whole(&mut curl)?;
    ensure!(head.contains(" 403") && body.contains(r#"\"jane\""#), "{head}\n{body}");
    Ok(())
}

#[test]
fn t68_headers_pass_both_ways() -> Result<()> {
    let bed = Bed::new("t68")?;
    let proxy = bed.proxy(&["a"])?;
    let way = Way::Through(&proxy);
    for version in ["--http1.1", "--http2"] {
        let id = format!("0b5c9c2e-0000-4000-8000-{:012x}", fastrand::u64(..1 << 48));
        let mut curl = bed.curl(&way, &bed.path("configmaps"));
        curl.args([version, "-H", &format!("Audit-ID: {id}")]);
        let (head, _) = whole(&mut curl)?;
        ensure!(head.contains(&format!("audit-id: {id}")), "{head}");
        ensure!(head.contains("x-kubernetes-pf-flowschema-uid: "), "{head}");
        bed.api.audit().reader()?.wait_for(LIMIT, |entry| entry.audit_id == id)?;

        let mut curl = bed.curl(&way, &bed.path("configmaps"));
        curl.args([version, "-H", "Impersonate-User: jane", "-H", "Impersonate-Group: team"]);
        let (head, body) = whole(&mut curl)?;
        ensure!(head.contains(" 403") && body.contains(r#"\"jane\""#), "{head}\n{body}");

        let object = json!({ "metadata": { "name": "odd" }, "nothing": 1 }).to_string();
        let mut curl =
            bed.curl(&way, &format!("{}?fieldValidation=Warn&dryRun=All", bed.path("configmaps")));
        curl.args([version, "-H", "Content-Type: application/json", "--data", &object]);
        let (head, _) = whole(&mut curl)?;
        ensure!(head.contains(" 201") && head.contains("warning: 299 "), "{head}");
    }
    Ok(())
}
