//! What the API server makes of a request line: its own rules, told again as it has them
//! (`apiserver/pkg/endpoints/request/requestinfo.go`), step by step and with no care for speed.

use ctrlmesh::wire::{
    RequestInfo, Resource, Selector,
    query::MAX_PAIRS,
    request::{PathError, Target},
};
use http::Method;

use crate::text::{first, required, terms, unescape};

/// The fields of upstream's `RequestInfo`; empty ones are left out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Info {
    is_resource: bool,
    verb: String,
    group: Vec<u8>,
    version: Vec<u8>,
    namespace: Vec<u8>,
    resource: Vec<u8>,
    subresource: Vec<u8>,
    name: Vec<u8>,
}

/// A method, a space, and a path with its query.
pub(crate) fn classify(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (method, target) = text.split_once(' ').unwrap_or(("GET", text));
    let Ok(method) = Method::from_bytes(method.as_bytes()) else { return };
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    let own = RequestInfo::parse(&method, path, query);
    let is_crowded = query.unwrap_or_default().split('&').count() > MAX_PAIRS;
    assert_eq!(matches!(own, Err(PathError::Query(_))), is_crowded);
    if is_crowded {
        return;
    }
    let theirs = unescape(path, false).map(|path| info(&method, &path, query.unwrap_or_default()));
    let odd = oddity(path);
    match own {
        Ok(own) => check(&own, &method, theirs, odd.is_some()),
        // Nothing is refused but what has a reason.
        Err(error) => assert!(odd.is_some() || matches!(theirs, Some(None)), "{error}: {text:?}"),
    }
}

fn check(own: &RequestInfo<'_>, method: &Method, theirs: Option<Option<Info>>, is_odd: bool) {
    let is_proxy = own.resource().is_some_and(|resource| {
        resource.subresource.as_deref() == Some("proxy")
            && resource.group.is_empty()
            && ["pods", "services", "nodes"].contains(&&*resource.resource)
    });
    assert!(!is_odd || is_proxy, "{own:?} of an odd path");
    // What it cannot decode it answers with 400.
    let Some(theirs) = theirs else { return };
    let theirs = theirs.expect("it has a resource");
    let mine = match &own.target {
        Target::NonResource => Info { verb: own.verb.as_str().to_owned(), ..Info::default() },
        Target::Resource(resource) => of_resource(own.verb.as_str(), resource),
    };
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    if mine.is_resource || theirs.is_resource || known.contains(&method.as_str()) {
        assert_eq!(mine, theirs);
    }
}

fn of_resource(verb: &str, resource: &Resource<'_>) -> Info {
    let bytes = |text: &Option<std::borrow::Cow<'_, str>>| {
        text.as_deref().unwrap_or_default().as_bytes().to_vec()
    };
    Info {
        is_resource: true,
        verb: verb.to_owned(),
        group: resource.group.as_bytes().to_vec(),
        version: resource.version.as_bytes().to_vec(),
        namespace: bytes(&resource.namespace),
        resource: resource.resource.as_bytes().to_vec(),
        subresource: bytes(&resource.subresource),
        name: bytes(&resource.name),
    }
}

/// Why two readers may read a path in two ways.
fn oddity(path: &str) -> Option<&'static str> {
    if path == "*" {
        return None;
    }
    let Some(path) = path.strip_prefix('/') else { return Some("not absolute") };
    if path.is_empty() {
        return None;
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    path.split('/').find_map(|raw| match unescape(raw, false).map(String::from_utf8) {
        None => Some("a broken escape"),
        Some(Err(_)) => Some("no UTF-8"),
        Some(Ok(text)) if text.is_empty() => Some("an empty segment"),
        Some(Ok(text)) if text == "." || text == ".." => Some("a dot"),
        Some(Ok(text)) if raw.contains('%') && text.contains(['/', '\0']) => Some("a slash"),
        Some(Ok(_)) => None,
    })
}

/// `NewRequestInfo`; `None` for its error.
fn info(method: &Method, path: &[u8], query: &str) -> Option<Info> {
    let mut info = Info { verb: method.as_str().to_lowercase(), ..Info::default() };
    let mut parts = split(path);
    if parts.len() < 3 || (parts[0] != b"api" && parts[0] != b"apis") {
        return Some(info);
    }
    let prefix = parts.remove(0);
    if prefix == b"apis" {
        if parts.len() < 3 {
            return Some(info);
        }
        info.group = parts.remove(0).to_vec();
    }
    info.is_resource = true;
    info.version = parts.remove(0).to_vec();
    if parts[0] == b"proxy" || parts[0] == b"watch" {
        if parts.len() < 2 {
            return None;
        }
        info.verb = String::from_utf8(parts.remove(0).to_vec()).ok()?;
    } else {
        let verb = match method.as_str() {
            "POST" => "create",
            "GET" | "HEAD" => "get",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => "",
        };
        info.verb = verb.to_owned();
    }
    if parts[0] == b"namespaces" && parts.len() > 1 {
        info.namespace = parts[1].to_vec();
        if parts.len() > 2 && parts[2] != b"status" && parts[2] != b"finalize" {
            parts.drain(..2);
        }
    }
    if parts.len() >= 3 && info.verb != "proxy" {
        info.subresource = parts[2].to_vec();
    }
    if parts.len() >= 2 {
        info.name = parts[1].to_vec();
    }
    info.resource = parts[0].to_vec();
    if info.name.is_empty() && info.verb == "get" {
        collection(&mut info, query);
    }
    if info.name.is_empty() && info.verb == "delete" {
        info.verb = "deletecollection".to_owned();
    }
    Some(info)
}

/// `strings.Split(strings.Trim(path, "/"), "/")`.
fn split(path: &[u8]) -> Vec<&[u8]> {
    let is_slash = |byte: &u8| *byte == b'/';
    let start = path.iter().position(|byte| !is_slash(byte)).unwrap_or(path.len());
    let end = path.iter().rposition(|byte| !is_slash(byte)).map_or(start, |last| last + 1);
    match path.get(start..end).unwrap_or_default() {
        [] => Vec::new(),
        trimmed => trimmed.split(is_slash).collect(),
    }
}

/// A get of no name is a list or a watch, and its options may name one object after all.
fn collection(info: &mut Info, query: &str) {
    let watch = first(query, "watch");
    let fields = first(query, "fieldSelector").map(|text| terms(&text));
    let is_number = |key| first(query, key).is_none_or(|text| text.parse::<i64>().is_ok());
    let is_label = first(query, "labelSelector").is_none_or(|text| Selector::parse(&text).is_ok());
    let is_decoded =
        is_number("timeoutSeconds") && is_number("limit") && is_label && fields != Some(None);
    let is_watch = watch.is_some_and(|text| {
        // `strings.EqualFold`, to which U+017F is an s, or `strings.ToLower`, to which it is not.
        let text = if is_decoded { text.replace('\u{17f}', "s") } else { text };
        text != "0" && !text.eq_ignore_ascii_case("false")
    });
    info.verb = if is_watch { "watch" } else { "list" }.to_owned();
    if let (true, Some(Some(terms))) = (is_decoded, fields)
        && let Some(name) = required(&terms, "metadata.name")
        && name != "."
        && name != ".."
        && !name.contains(['/', '%'])
    {
        info.name = name.into_bytes();
    }
}
