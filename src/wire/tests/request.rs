use http::Method;
use proptest::prelude::*;

use crate::request::{PathError, RequestInfo, Target};

/// `VERB GROUP/VERSION/RESOURCE[/SUBRESOURCE] ns=NAMESPACE name=NAME`, the format of the tables
/// below.
fn line(method: &str, target: &str) -> String {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
    match RequestInfo::parse(&method, path, query) {
        Err(error) => format!("{error:?}"),
        Ok(RequestInfo { verb, target: Target::NonResource, .. }) => {
            format!("{} -", verb.as_str())
        }
        Ok(RequestInfo { verb, target: Target::Resource(resource), .. }) => {
            let mut line = format!(
                "{} {}/{}/{}",
                verb.as_str(),
                resource.group,
                resource.version,
                resource.resource
            );
            if let Some(subresource) = &resource.subresource {
                line += &format!("/{subresource}");
            }
            if let Some(namespace) = &resource.namespace {
                line += &format!(" ns={namespace}");
            }
            if let Some(name) = &resource.name {
                line += &format!(" name={name}");
            }
            if !resource.rest.is_empty() {
                line += &format!(" rest={}", resource.rest);
            }
            line
        }
    }
}

fn check(table: &[(&str, &str, &str)]) {
    for (method, target, expected) in table {
        assert_eq!(line(method, target), *expected, "{method} {target}");
    }
}

#[test]
fn resources_and_verbs() {
    check(&[
        ("GET", "/api/v1/pods", "list /v1/pods"),
        ("HEAD", "/api/v1/pods", "list /v1/pods"),
        ("GET", "/api/v1/namespaces/a/pods", "list /v1/pods ns=a"),
        ("GET", "/api/v1/namespaces/a/pods/p", "get /v1/pods ns=a name=p"),
        ("HEAD", "/api/v1/namespaces/a/pods/p", "get /v1/pods ns=a name=p"),
        ("POST", "/api/v1/namespaces/a/pods", "create /v1/pods ns=a"),
        ("PUT", "/api/v1/namespaces/a/pods/p", "update /v1/pods ns=a name=p"),
        ("PATCH", "/api/v1/namespaces/a/pods/p", "patch /v1/pods ns=a name=p"),
        ("DELETE", "/api/v1/namespaces/a/pods/p", "delete /v1/pods ns=a name=p"),
        ("DELETE", "/api/v1/namespaces/a/pods", "deletecollection /v1/pods ns=a"),
        ("OPTIONS", "/api/v1/pods", " /v1/pods"),
        ("get", "/api/v1/pods", " /v1/pods"),
        ("PUT", "/api/v1/namespaces/a/pods/p/status", "update /v1/pods/status ns=a name=p"),
        ("POST", "/api/v1/namespaces/a/pods/p/binding", "create /v1/pods/binding ns=a name=p"),
        ("GET", "/api/v1/namespaces/a/pods/p/log/x/y", "get /v1/pods/log ns=a name=p rest=x/y"),
        ("GET", "/api/v1/nodes/n", "get /v1/nodes name=n"),
        ("GET", "/apis/apps/v1/deployments", "list apps/v1/deployments"),
        (
            "GET",
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            "get apps/v1/deployments/scale ns=a name=d",
        ),
        ("GET", "/apis/g.example.com/v1beta1/things/t", "get g.example.com/v1beta1/things name=t"),
        ("GET", "/api/v1/namespaces/a/pods/my%2Dpod", "get /v1/pods ns=a name=my-pod"),
        ("GET", "/api/v1/namespaces/a/configmaps/a%25b", "get /v1/configmaps ns=a name=a%b"),
    ]);
}

#[test]
fn namespaces_are_in_themselves() {
    check(&[
        ("GET", "/api/v1/namespaces", "list /v1/namespaces"),
        ("POST", "/api/v1/namespaces", "create /v1/namespaces"),
        ("GET", "/api/v1/namespaces/a", "get /v1/namespaces ns=a name=a"),
        ("DELETE", "/api/v1/namespaces/a", "delete /v1/namespaces ns=a name=a"),
        ("PUT", "/api/v1/namespaces/a/status", "update /v1/namespaces/status ns=a name=a"),
        ("PUT", "/api/v1/namespaces/a/finalize", "update /v1/namespaces/finalize ns=a name=a"),
        (
            "GET",
            "/api/v1/namespaces/a/finalize/x",
            "get /v1/namespaces/finalize ns=a name=a rest=x",
        ),
        // Not a subresource of Namespace, so a resource.
        ("GET", "/api/v1/namespaces/a/log", "list /v1/log ns=a"),
        ("GET", "/apis/x/v1/namespaces/a", "get x/v1/namespaces ns=a name=a"),
    ]);
}

#[test]
fn what_is_no_resource() {
    check(&[
        ("GET", "/", "get -"),
        ("GET", "/api", "get -"),
        ("GET", "/api/", "get -"),
        ("GET", "/api/v1", "get -"),
        ("GET", "/api/v1/", "get -"),
        ("GET", "/apis", "get -"),
        ("GET", "/apis/apps", "get -"),
        ("GET", "/apis/apps/v1", "get -"),
        ("GET", "/apis/apps/v1/", "get -"),
        ("GET", "/healthz", "get -"),
        ("HEAD", "/healthz", "head -"),
        ("POST", "/version", "post -"),
        ("PUT", "/x", "put -"),
        ("OPTIONS", "*", "options -"),
        ("GET", "/openapi/v3/apis/apps/v1", "get -"),
        ("GET", "/openapi/v3/apis/apps/v1?hash=1&watch=1", "get -"),
    ]);
}

#[test]
fn t09_verbs_in_the_path() {
    check(&[
        ("GET", "/api/v1/watch/pods", "watch /v1/pods"),
        ("DELETE", "/api/v1/watch/pods", "watch /v1/pods"),
        ("GET", "/api/v1/watch/pods?watch=0", "watch /v1/pods"),
        ("GET", "/api/v1/watch/namespaces/a/pods", "watch /v1/pods ns=a"),
        ("GET", "/api/v1/watch/namespaces/a/pods/p", "watch /v1/pods ns=a name=p"),
        (
            "GET",
            "/api/v1/watch/namespaces/a/pods?fieldSelector=metadata.name=p",
            "watch /v1/pods ns=a",
        ),
        ("GET", "/apis/apps/v1/watch/deployments", "watch apps/v1/deployments"),
        ("GET", "/api/v1/watch/namespaces", "watch /v1/namespaces"),
        ("GET", "/api/v1/watch/namespaces/a", "watch /v1/namespaces ns=a name=a"),
        ("GET", "/api/v1/watch", "NoResource"),
        ("GET", "/api/v1/watch/", "NoResource"),
        ("GET", "/apis/a/v1/proxy", "NoResource"),
        ("GET", "/api/v1/proxy/nodes/n", "proxy /v1/nodes name=n"),
        ("POST", "/api/v1/proxy/namespaces/a/pods/p/x/y", "proxy /v1/pods ns=a name=p rest=y"),
    ]);
    let info = RequestInfo::parse(&Method::GET, "/api/v1/watch/pods", None).expect("parses");
    assert!(info.resource().is_some_and(|resource| resource.verb_in_path));
    for (path, own) in [
        ("/api/v1/watch/pods", "/api/v1/pods"),
        ("/api/v1/%77atch/namespaces/watch/pods/", "/api/v1/namespaces/watch/pods/"),
        ("/apis/apps/v1/watch/deployments", "/apis/apps/v1/deployments"),
        ("/apis/apps/v1/deployments", "/apis/apps/v1/deployments"),
        ("/api/v1/watch", "/api/v1/watch"),
        ("/watch/x", "/watch/x"),
    ] {
        let own_path = RequestInfo::parse(&Method::GET, path, None).map(|info| info.own_path());
        assert!(own_path.is_err() || own_path == Ok(own.into()), "{path}: {own_path:?}");
    }
}

#[test]
fn t10_watch_in_every_spelling() {
    let watch = "watch /v1/pods";
    let list = "list /v1/pods";
    for (query, expected) in [
        ("", list),
        ("watch", watch),
        ("watch=", watch),
        ("watch=1", watch),
        ("watch=true", watch),
        ("watch=TRUE", watch),
        ("watch=t", watch),
        ("watch=no", watch),
        ("watch=0", list),
        ("watch=false", list),
        ("watch=FaLsE", list),
        ("watch=00", watch),
        ("watch=+0", watch),
        ("watch=0&watch=1", list),
        ("watch=1&watch=0", watch),
        ("watch=%zz", list),
        ("watch=%zz&watch=1", watch),
        ("watch=1;x", list),
        ("%77atch=1", watch),
        ("Watch=1", list),
        // Malformed options: any value but false and 0 still counts.
        ("watch=1&limit=x", watch),
        ("watch=false&limit=x", list),
        ("watch=FALSE&fieldSelector=metadata.name=p&limit=x", list),
        ("watch&timeoutSeconds=", watch),
        ("limit=x", list),
        // U+017F is an s to Go's case folding alone.
        ("watch=fal%C5%BFe", list),
        ("watch=fal%C5%BFe&limit=x", watch),
        ("watch=%ff", watch),
    ] {
        let target = format!("/api/v1/pods?{query}");
        assert_eq!(line("GET", &target), expected, "{target}");
    }
    assert_eq!(line("GET", "/api/v1/namespaces/a/pods/p?watch=1"), "get /v1/pods ns=a name=p");
    assert_eq!(line("POST", "/api/v1/namespaces/a/pods?watch=1"), "create /v1/pods ns=a");
}

#[test]
fn t29_a_field_selector_for_one_name_means_one_object() {
    for (query, expected) in [
        ("fieldSelector=metadata.name=p", "list /v1/pods name=p"),
        ("fieldSelector=metadata.name%3Dp&watch=1", "watch /v1/pods name=p"),
        ("fieldSelector=metadata.name==p", "list /v1/pods name=p"),
        ("fieldSelector=metadata.name!=p", "list /v1/pods"),
        ("fieldSelector=spec.nodeName=n,metadata.name=p", "list /v1/pods name=p"),
        ("fieldSelector=metadata.name=b,metadata.name=a", "list /v1/pods name=a"),
        ("fieldSelector=metadata.name=p&fieldSelector=x=y", "list /v1/pods name=p"),
        ("fieldSelector=x=y&fieldSelector=metadata.name=p", "list /v1/pods"),
        ("fieldSelector=metadata.name+=p", "list /v1/pods"),
        ("fieldSelector=metadata.name=", "list /v1/pods"),
        ("fieldSelector=metadata.name=..", "list /v1/pods"),
        ("fieldSelector=metadata.name=a/b", "list /v1/pods"),
        ("fieldSelector=metadata.name=a%2525", "list /v1/pods"),
        ("fieldSelector=metadata.name=a\\,b", "list /v1/pods name=a,b"),
        // Malformed options have no name.
        ("fieldSelector=metadata.name=a=b", "list /v1/pods"),
        ("fieldSelector=metadata.name=p&limit=x", "list /v1/pods"),
        ("fieldSelector=metadata.name=p&limit=", "list /v1/pods"),
        ("fieldSelector=metadata.name=p&limit=-5&timeoutSeconds=%2B3", "list /v1/pods name=p"),
        ("fieldSelector=metadata.name=p&limit=9223372036854775808", "list /v1/pods"),
        ("fieldSelector=metadata.name=p&labelSelector=a=b=c", "list /v1/pods"),
        ("fieldSelector=metadata.name=p&labelSelector=a", "list /v1/pods name=p"),
    ] {
        let target = format!("/api/v1/pods?{query}");
        assert_eq!(line("GET", &target), expected, "{target}");
    }
    let delete = "/api/v1/namespaces/a/pods?fieldSelector=metadata.name=p";
    assert_eq!(line("DELETE", delete), "deletecollection /v1/pods ns=a");
}

#[test]
fn t70_path_tricks_are_refused_or_classified() {
    check(&[
        ("GET", "", "NotAbsolute"),
        ("GET", "api/v1/pods", "NotAbsolute"),
        ("GET", "//api/v1/pods", "EmptySegment"),
        ("GET", "//", "EmptySegment"),
        ("GET", "/api//v1/pods", "EmptySegment"),
        ("GET", "/api/v1//pods", "EmptySegment"),
        ("GET", "/api/v1/pods//", "EmptySegment"),
        ("GET", "/api/v1/namespaces//pods", "EmptySegment"),
        ("GET", "/api/v1/pods/", "list /v1/pods"),
        ("GET", "/api/v1/namespaces/a/", "get /v1/namespaces ns=a name=a"),
        ("GET", "/API/v1/pods", "get -"),
        ("GET", "/api/v1/Pods", "list /v1/Pods"),
        ("GET", "/%61pi/v1/pods", "list /v1/pods"),
        ("GET", "/api/v1/%70ods", "list /v1/pods"),
        ("GET", "/api/v1/./pods", "DotSegment"),
        ("GET", "/healthz/../api/v1/pods", "DotSegment"),
        ("GET", "/healthz/%2e%2E/api/v1/pods", "DotSegment"),
        ("GET", "/api/v1/namespaces/a%2Fpods", "EncodedSlash"),
        ("GET", "/api%2fv1/pods", "EncodedSlash"),
        ("GET", "/api/v1/namespaces/a/pods/p%00", "Nul"),
        ("GET", "/api/v1/namespaces/%ff", "NotUtf8"),
        ("GET", "/api/v1/pods/%", "BrokenEscape"),
        ("GET", "/api/v1/pods/%4", "BrokenEscape"),
        ("GET", "/api/v1/pods/%zz", "BrokenEscape"),
        ("GET", "/api/v1/pods/...", "get /v1/pods name=..."),
        ("GET", "/api/v1/pods/a+b", "get /v1/pods name=a+b"),
        ("GET", "/api/v1/namespaces/a/pods/p/log/../../q", "DotSegment"),
        ("GET", "/openapi//v2", "EmptySegment"),
        // The tail of a proxy path belongs to another server.
        (
            "GET",
            "/api/v1/namespaces/a/pods/p/proxy//x/../%2f%zz%00",
            "get /v1/pods/proxy ns=a name=p rest=/x/../%2f%zz%00",
        ),
        (
            "POST",
            "/api/v1/namespaces/a/services/https:s:1/proxy/..",
            "create /v1/services/proxy ns=a name=https:s:1 rest=..",
        ),
        ("GET", "/api/v1/nodes/n/proxy/metrics", "get /v1/nodes/proxy name=n rest=metrics"),
        ("GET", "/api/v1/nodes/n/%70roxy/a//b", "get /v1/nodes/proxy name=n rest=a//b"),
        ("GET", "/api/v1/nodes/../proxy/a//b", "DotSegment"),
        ("GET", "/apis/x/v1/nodes/n/proxy/a//b", "EmptySegment"),
        ("GET", "/api/v1/namespaces/a/configmaps/c/proxy//", "EmptySegment"),
    ]);
    let many = format!("/api/v1/pods?{}", "a&".repeat(2000));
    assert!(line("GET", &many).starts_with("Query(TooManyPairs"));
}

proptest! {
    #[test]
    fn no_input_panics(
        method in prop::sample::select(vec!["GET", "DELETE", "POST", "X"]),
        path in "/?((api|apis|v1|watch|proxy|namespaces|pods|a|%2[fFe]|%00|[.]{1,3}|\\PC)?/){0,7}.{0,6}",
        query in prop::option::of("((watch|fieldSelector|labelSelector|limit)=?(metadata.name=|%|\\PC){0,6}&?){0,4}"),
    ) {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let parsed = RequestInfo::parse(&method, &path, query.as_deref());
        // The name of an accepted object is one segment.
        if let Ok(Some(resource)) = parsed.as_ref().map(RequestInfo::resource) {
            let name = resource.name.as_deref().unwrap_or("x");
            prop_assert!(!name.is_empty() && !name.contains('/') && name != "..");
        }
        if path.starts_with("//") {
            prop_assert!(matches!(parsed, Err(PathError::EmptySegment | PathError::Query(_))));
        }
    }
}
