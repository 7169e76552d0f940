//! Requests as no client library writes them: what the API server makes of them we make too.

use anyhow::{Context, Result, anyhow, bail, ensure};
use ctrlmesh_e2e::Proxy;
use serde_json::Value;

use crate::direct::bed::{Bed, Way, config_maps, names, output};

fn json_lines(bytes: &[u8]) -> Result<Vec<Value>> {
    let text = std::str::from_utf8(bytes)?;
    ensure!(text.is_empty() || text.ends_with('\n'), "the last line is cut off: {text:?}");
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// (type, name) of each event.
fn shown(events: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    events.iter().map(|e| (text(&e["type"]), text(&e["object"]["metadata"]["name"]))).collect()
}

/// The status code and the body.
type Answered = (String, Vec<u8>);

fn answer(bed: &Bed, way: &Way<'_>, path: &str) -> Result<Answered> {
    let bytes = output(bed.curl(way, path).args(["-w", "\n%{http_code}"]))?;
    let at = bytes.iter().rposition(|byte| *byte == b'\n').context("the code's own line")?;
    Ok((String::from_utf8(bytes[at + 1..].to_vec())?, bytes[..at].to_vec()))
}

/// The answers straight and through the proxy to each path. A watch lasts its second, so all are
/// asked at once.
fn answers(bed: &Bed, proxy: &Proxy, paths: &[String]) -> Result<Vec<(Answered, Answered)>> {
    let through = Way::Through(proxy);
    let both = |path| Ok((answer(bed, &Way::Straight, path)?, answer(bed, &through, path)?));
    std::thread::scope(|scope| {
        let tasks: Vec<_> = paths.iter().map(|path| scope.spawn(|| both(path))).collect();
        tasks
            .into_iter()
            .map(|task| task.join().map_err(|_| anyhow!("a request panicked"))?)
            .collect()
    })
}

#[test]
fn t10_what_is_a_watch_is_decided_as_the_api_server_does() -> Result<()> {
    let bed = Bed::new("t10")?;
    bed.config_map("mine", "team=a")?;
    bed.config_map("other", "team=b")?;
    let proxy = bed.proxy(&["a"])?;
    let maps = bed.path("configmaps");
    let legacy = maps.replace("/api/v1/", "/api/v1/watch/");
    let mut paths: Vec<String> = "watch=1 watch=true watch=TRUE watch=True watch=yes watch=t \
        watch= watch watch=0 watch=false watch=FALSE watch=False watch=f watch=F watch=no \
        watch=0&watch=1 watch=1&watch=0 %77atch=1 watch=%31 Watch=1"
        .split(' ')
        .map(|query| format!("{maps}?{query}&timeoutSeconds=1"))
        .collect();
    paths.push(format!("{legacy}?timeoutSeconds=1"));
    paths.push(format!("{legacy}?watch=false&timeoutSeconds=1"));
    let mut watches = 0;
    for (path, answers) in paths.iter().zip(answers(&bed, &proxy, &paths)?) {
        let ((code, straight), (our_code, through)) = answers;
        ensure!(code == our_code, "{path}: {code} became {our_code}");
        if code != "200" {
            continue;
        }
        let list = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok().filter(is_list);
        match (list(&straight), list(&through)) {
            (Some(_), Some(list)) => ensure!(names(&list) == ["mine"], "{path}"),
            (None, None) => {
                watches += 1;
                let events = shown(&json_lines(&through)?);
                let expected = ("ADDED".to_owned(), "mine".to_owned());
                ensure!(events == [expected], "{path}: {events:?}");
            }
            _ => bail!("{path}: list or watch?"),
        }
    }
    println!("t10: {} spellings, {watches} of them watches", paths.len());
    ensure!(watches > 8);
    Ok(())
}

fn is_list(value: &Value) -> bool {
    value["kind"] == "ConfigMapList"
}

#[test]
fn t08_a_watch_that_times_out_ends_clean() -> Result<()> {
    let bed = Bed::new("t08")?;
    bed.config_map("mine", "team=a")?;
    let proxy = bed.proxy(&["a"])?;
    for version in ["--http1.1", "--http2"] {
        let path = format!("{}?watch=1&timeoutSeconds=1", bed.path("configmaps"));
        let mut curl = bed.curl(&Way::Through(&proxy), &path);
        let started = std::time::Instant::now();
        // curl fails when the body is cut off.
        let events = json_lines(&output(curl.arg(version))?)?;
        let took = started.elapsed().as_secs_f64();
        println!("t08: {version}: a watch of 1 s took {took:.2} s");
        ensure!(shown(&events).len() == 1, "{events:?}");
        ensure!((0.9..2.0).contains(&took), "{took}");
    }
    Ok(())
}

#[test]
fn t13_t14_moves_have_the_events_of_a_native_selector() -> Result<()> {
    let bed = Bed::new("t13")?;
    // With an empty state directory nothing was shown before: any position may be resumed.
    let proxy = Proxy::builder("mine", &config_maps(&["a"])).keeps_state().start(&bed.api)?;
    bed.config_map("stays", "team=a")?;
    bed.config_map("moves", "team=b")?;
    let list = bed.api.client().get(&bed.path("configmaps"))?.json()?;
    let from = list["metadata"]["resourceVersion"].as_str().context("a list has one")?;
    bed.relabel("moves", Some("a"))?;
    bed.relabel("moves", Some("b"))?;
    bed.relabel("moves", Some("a"))?;
    bed.relabel("stays", None)?;
    bed.config_map("new", "team=a")?;
    bed.delete("new")?;
    bed.config_map("never", "team=c")?;
    bed.relabel("moves", Some("c"))?;
    let path =
        format!("{}?watch=1&timeoutSeconds=1&resourceVersion={from}", bed.path("configmaps"));
    let events = |way: &Way<'_>, path: &str| json_lines(&output(&mut bed.curl(way, path))?);
    let through = events(&Way::Through(&proxy), &path)?;
    let native = events(&Way::Straight, &format!("{path}&labelSelector=team+in+(a)"))?;
    ensure!(through == native, "{through:?}\n{native:?}");
    let expected = [
        ("ADDED", "moves"),
        ("DELETED", "moves"),
        ("ADDED", "moves"),
        ("DELETED", "stays"),
        ("ADDED", "new"),
        ("DELETED", "new"),
        ("DELETED", "moves"),
    ];
    let expected = expected.map(|(kind, name)| (kind.to_owned(), name.to_owned()));
    ensure!(shown(&through) == expected, "{:?}", shown(&through));
    let versions: Vec<u64> = through
        .iter()
        .map(|e| Ok(e["object"]["metadata"]["resourceVersion"].as_str().context("rv")?.parse()?))
        .collect::<Result<_>>()?;
    ensure!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    Ok(())
}

fn first_page(bed: &Bed, proxy: &Proxy) -> Result<Value> {
    let path = format!("{}?limit=1", bed.path("configmaps"));
    proxy.client(bed.token())?.get(&path)?.json()
}

#[test]
fn t23_pages_of_the_old_scope_expire_and_watches_are_brought_over() -> Result<()> {
    let bed = Bed::new("t23")?;
    let proxy = Proxy::builder("mine", &config_maps(&["a"])).keeps_state().start(&bed.api)?;
    for name in ["a1", "a2", "a3"] {
        bed.config_map(name, "team=a")?;
    }
    bed.config_map("b1", "team=b")?;
    let page = first_page(&bed, &proxy)?;
    let token = page["metadata"]["continue"].as_str().context("there is more")?;
    let version = page["metadata"]["resourceVersion"].as_str().context("a list has one")?;
    let next = format!("{}?limit=1&continue={token}", bed.path("configmaps"));
    let watch =
        format!("{}?watch=1&timeoutSeconds=1&resourceVersion={version}", bed.path("configmaps"));
    let through = proxy.client(bed.token())?;
    ensure!(through.get(&next)?.status == 200);
    ensure!(through.get(&watch)?.status == 200);

    proxy.change_policy(&config_maps(&["a", "b"]))?;
    let expired = through.get(&next)?;
    ensure!(expired.status == 410, "{}", expired.text);
    let status: Value = serde_json::from_str(&expired.text)?;
    ensure!(status["kind"] == "Status" && status["reason"] == "Expired", "{status}");
    let brought_over = through.get(&watch)?;
    ensure!(brought_over.status == 200, "{}", brought_over.text);
    let event: Value = serde_json::from_str(brought_over.text.trim())?;
    let is_new = event["type"] == "ADDED" && event["object"]["metadata"]["name"] == "b1";
    ensure!(is_new && event["object"]["kind"] == "ConfigMap", "{event}");

    let page = first_page(&bed, &proxy)?;
    let version = page["metadata"]["resourceVersion"].as_str().context("a list has one")?;
    let watch =
        format!("{}?watch=1&timeoutSeconds=1&resourceVersion={version}", bed.path("configmaps"));
    let list = through.get(&bed.path("configmaps"))?.json()?;
    ensure!(names(&list).len() == 4);
    let fresh = through.get(&watch)?;
    println!("t23: a watch from the new list's position: {} {:?}", fresh.status, fresh.text);
    // A policy that treats every request alike expires nothing.
    proxy.set_policy(&config_maps(&["b", "a"]))?;
    ensure!(through.get(&bed.path("configmaps"))?.status == 200);
    Ok(())
}

#[test]
fn t28_options_go_upstream_as_they_came() -> Result<()> {
    let bed = Bed::new("t28")?;
    bed.config_map("mine", "team=a")?;
    let proxy = bed.proxy(&["a"])?;
    let through = proxy.client(bed.token())?;
    let list = through.get(&bed.path("configmaps"))?.json()?;
    let version = list["metadata"]["resourceVersion"].as_str().context("a list has one")?;
    let exact = format!("resourceVersion={version}&resourceVersionMatch=Exact");
    let newer = format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan&limit=1");
    for (at, query) in ["limit=1", "resourceVersion=0", &exact, &newer].iter().enumerate() {
        let query = format!("{query}&pretty=false&timeoutSeconds={}", 20 + at);
        let list = through.get(&format!("{}?{query}", bed.path("configmaps")))?.json()?;
        ensure!(names(&list) == ["mine"], "{query}: {list}");
        let entry = bed.api.audit().reader()?.wait_for(crate::direct::bed::LIMIT, |entry| {
            entry.request_uri.starts_with(&bed.path("configmaps"))
                && entry.request_uri.contains(&format!("timeoutSeconds={}", 20 + at))
        })?;
        let (_, sent) = entry.request_uri.split_once('?').context("a query")?;
        let rest: Vec<&str> =
            sent.split('&').filter(|part| !part.starts_with("labelSelector=")).collect();
        ensure!(rest.join("&") == query, "{sent}");
    }
    Ok(())
}

#[test]
fn t70_odd_paths_never_widen_the_shard() -> Result<()> {
    let bed = Bed::new("t70")?;
    bed.config_map("mine", "team=a")?;
    bed.config_map("other", "team=b")?;
    let proxy = bed.proxy(&["a"])?;
    let ns = &bed.namespace;
    for path in [
        format!("/api/v1/namespaces/{ns}/configmaps/"),
        format!("//api/v1/namespaces/{ns}/configmaps"),
        format!("/api//v1/namespaces/{ns}/configmaps"),
        format!("/api/v1/namespaces/{ns}//configmaps"),
        format!("/api/v1/./namespaces/{ns}/configmaps"),
        format!("/api/v1/namespaces/../namespaces/{ns}/configmaps"),
        format!("/api/v1/namespaces/{ns}/x/../configmaps"),
        format!("/api/v1/namespaces/{ns}%2fconfigmaps"),
        format!("/api/v1%2fnamespaces/{ns}/configmaps"),
        format!("/api/v1/namespaces/{ns}/%63onfigmaps"),
        format!("/api/v1/namespaces/{ns}/configmaps%2f"),
        format!("/api/v1/namespaces/{ns}/configmaps%3fwatch=1"),
        format!("/API/v1/namespaces/{ns}/configmaps"),
        format!("/api/v1/namespaces/{ns}/ConfigMaps"),
        format!("/api/v1/namespaces/{ns}/configmaps;x=1"),
        format!("/api/v1/namespaces/{ns}/configmaps#x"),
        format!("/api/v1/namespaces/{ns}/configmaps?labelSelector=team%3Db;x=1"),
        format!("/api/v1/namespaces/{ns}/configmaps?%zz"),
        format!("/api/v1/namespaces/{ns}/configmaps?labelSelector=%zz"),
        format!("/api/v1/namespaces/{ns}/configmaps?labelSelector=a%20b%20c"),
        "/api/v1/configmaps".to_owned(),
        "/api/v1/namespaces/%2a/configmaps".to_owned(),
    ] {
        for version in ["--http1.1", "--http2"] {
            let mut straight = bed.curl(&Way::Straight, &path);
            let mut through = bed.curl(&Way::Through(&proxy), &path);
            let options = [version, "--path-as-is", "-g", "-w", "\n%{http_code}"];
            let straight = String::from_utf8(output(straight.args(options))?)?;
            let through = String::from_utf8(output(through.args(options))?)?;
            let code = |text: &str| text.rsplit('\n').next().unwrap_or_default().to_owned();
            ensure!(
                !through.contains("\"name\":\"other\"") && !through.contains("\"name\": \"other\""),
                "{path}: {through}"
            );
            let (straight, through) = (code(&straight), code(&through));
            if straight != through {
                println!("t70: {version} {path}: {straight} straight, {through} through us");
            }
            ensure!(
                straight == through || through.starts_with('4'),
                "{path}: {straight} became {through}"
            );
        }
    }
    Ok(())
}
