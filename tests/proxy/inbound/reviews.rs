//! Reviews that are large, slow, broken off or never answered.

use http::{HeaderValue, Method};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::mesh::{BOTH, Mesh, Setup, call, post, review, review_of};
use crate::support::{
    client::{Http, text, upload},
    soon, until,
};

/// A review of an update, whose owner stands behind `size` bytes of the new object.
fn update(team: &str, size: usize) -> String {
    let object = json!({"metadata": {"name": "x"}, "data": {"a": "<".repeat(size)}});
    let old = json!({"metadata": {"name": "x", "labels": {"team": team}}});
    review_of("UPDATE", &object, &old)
}

#[tokio::test]
async fn i13_a_large_review_is_held_until_its_owner_is_known() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    for team in ["blue", "green"] {
        let body = update(team, 18 << 20);
        let pending = client.send(call(body.clone()));
        let mut arrived = mesh.shard(team).operator.call().await;
        assert!(arrived.body().await.unwrap() == body.as_bytes(), "byte for byte");
        arrived.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
    let held = || async { mesh.shards[0].metric("ctrlmesh_webhook_held_bytes", &[]).await };
    until("the memory is free", held, |bytes| *bytes == 0.0).await;
}

#[tokio::test]
async fn i13_a_review_streams_once_its_owner_is_known() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    for team in ["blue", "green"] {
        let (mut request, stream) = upload(Method::POST, "/validate?timeout=10s");
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
        let pending = client.send(request);
        let body = review(team);
        let (head, tail) = body.split_at(body.find("\"dryRun\"").unwrap());
        stream.send(head.to_owned()).await;
        // The end of the body is not there yet.
        let mut arrived = mesh.shard(team).operator.call().await;
        assert_eq!(arrived.chunk().await.unwrap().unwrap(), head.as_bytes());
        stream.send(tail.to_owned()).await;
        stream.end();
        assert_eq!(arrived.body().await.unwrap(), tail.as_bytes());
        arrived.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
}

#[tokio::test]
async fn bad_review_that_is_cut_off_reaches_nobody() {
    let mut mesh = Mesh::with(Setup { alpn: BOTH.to_vec(), ..Setup::default() }).await;
    for (at, http) in Http::BOTH.into_iter().enumerate() {
        let mut client = mesh.client(&mesh.shards[0], http).await;
        let (mut request, stream) = upload(Method::POST, "/validate?timeout=10s");
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
        let pending = client.send(request);
        stream.send(review("green")[..40].to_owned()).await;
        stream.tear().await;
        let _ = pending.await;
        let wanted = (at + 1).to_string();
        let refused = || async { mesh.shards[0].refused("bad_body").await };
        until("it is refused", refused, |count| count.to_string() == wanted).await;
    }
    assert!(mesh.shard("blue").operator.is_quiet() && mesh.shard("green").operator.is_quiet());
}

/// Twice as many as the room holds.
const AT_ONCE: usize = 8;

#[tokio::test]
async fn bad_reviews_of_18_mb_at_once_share_one_room() {
    let mut mesh = Mesh::start().await;
    let mut waiting = JoinSet::new();
    let mut clients = Vec::new();
    for _ in 0..AT_ONCE {
        let mut client = mesh.client(&mesh.shards[0], Http::One).await;
        waiting.spawn(client.send(post("/validate?timeout=30s", update("green", 18 << 20))));
        clients.push(client);
    }
    let green = &mut mesh.shards[1].operator;
    let (mut passed, mut refused) = (0, 0);
    while !waiting.is_empty() {
        tokio::select! {
            mut arrived = green.call() => {
                assert!(arrived.body().await.unwrap().len() > 18 << 20);
                arrived.json(200, "{}");
            }
            Some(answer) = waiting.join_next() => {
                let answer = answer.unwrap().unwrap();
                assert!(!answer.headers().contains_key("retry-after"));
                match text(answer).await {
                    (200, _) => passed += 1,
                    (503, body) => {
                        assert!(body.contains("fill the memory"), "{body}");
                        refused += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    assert!(passed >= 3 && passed + refused == AT_ONCE, "{passed} passed, {refused} refused");
    // The pod that they are sent on to refuses none: each keeps its room here until it is answered.
    let counted = mesh.shards[0].refused("no_review_room").await;
    assert_eq!(counted.to_string(), refused.to_string());
    let peak = mesh.shards[0].process.memory("VmHWM");
    println!("{} MiB at most, {passed} passed", peak >> 20);
    assert!(peak <= 128 << 20, "{} MiB", peak >> 20);
}

#[tokio::test]
async fn bad_operator_that_hangs_is_given_up_at_the_reviews_timeout() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    for team in ["blue", "green"] {
        let pending = client.send(post("/validate?timeout=1s", review(team)));
        let mut hangs = mesh.shard(team).operator.call().await;
        let answer = soon("an answer", pending).await.unwrap();
        let (code, body) = text(answer).await;
        assert_eq!(code, 503);
        assert!(body.contains("within the timeout"), "{body}");
        hangs.given_up().await;
    }
    // Of the one that is sent on, either pod may be the first to give up.
    let mut counted = 0;
    for shard in &mesh.shards {
        counted += shard.refused("review_timeout").await.to_string().parse::<u32>().unwrap();
    }
    assert!((2..=3).contains(&counted), "{counted}");
}

#[tokio::test]
async fn bad_operator_that_accepts_and_says_nothing() {
    let mut mesh = Mesh::with(Setup { shards: vec!["blue"], ..Setup::default() }).await;
    let _silent = mesh.end_operator("blue").await.listen();
    mesh.shards[0].until_open().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let (code, body) =
        text(client.send(post("/validate?timeout=30s", review("blue"))).await.unwrap()).await;
    assert_eq!(code, 503);
    assert!(body.contains("does not answer within 5s"), "{body}");
}

#[tokio::test]
async fn i13_an_operator_that_closes_its_connections_gets_each_review_once() {
    for http in Http::BOTH {
        let setup = Setup { shards: vec!["blue"], alpn: vec![http.alpn()], ..Setup::default() };
        let mut mesh = Mesh::with(setup).await;
        let mut client = mesh.client(&mesh.shards[0], http).await;
        for turn in 0..40 {
            let pending = client.send(call(review("blue")));
            let arrived = mesh.shard("blue").operator.call().await;
            let operator = &mesh.shards[0].operator;
            operator.go_away(operator.accepted() - 1).await;
            arrived.json(200, "{}");
            let answer = text(pending.await.unwrap()).await;
            assert_eq!(answer, (200, "{}".to_owned()), "{http:?}: review {turn}");
        }
        assert!(mesh.shards[0].operator.is_quiet());
    }
}

#[tokio::test]
async fn i13_a_client_that_leaves_cancels() {
    let mut mesh = Mesh::start().await;
    for team in ["blue", "green"] {
        let mut client = mesh.client(&mesh.shards[0], Http::One).await;
        let pending = client.send(call(review(team)));
        let mut hangs = mesh.shard(team).operator.call().await;
        drop((pending, client));
        hangs.given_up().await;
    }
}

#[tokio::test]
async fn bad_operator_that_resets() {
    let mut mesh = Mesh::start().await;
    // Here it is as without us; from another pod it is a failed call, which says whose.
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("blue")));
    mesh.shard("blue").operator.call().await.reset();
    pending.await.expect_err("the connection ends");
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("green")));
    mesh.shard("green").operator.call().await.reset();
    let (code, body) = text(pending.await.unwrap()).await;
    assert_eq!(code, 503);
    assert!(body.contains("a pod of shard green did not finish its answer"), "{body}");
    assert_eq!(mesh.shards[0].refused("review_broken").await.to_string(), "1");
}

#[tokio::test]
async fn bad_operator_that_answers_500_html_or_at_length() {
    let mut mesh = Mesh::start().await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    for team in ["blue", "green"] {
        let pending = client.send(call(review(team)));
        mesh.shard(team).operator.call().await.reply(500, "text/html", "<p>no");
        let answer = pending.await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/html");
        assert_eq!(text(answer).await, (500, "<p>no".to_owned()));

        let pending = client.send(call(review(team)));
        let own = [("keep-alive", "max=5")];
        let stream = mesh.shard(team).operator.call().await.stream(200, &own);
        let mut answer = pending.await.unwrap();
        assert!(!answer.headers().contains_key("keep-alive"), "it is of that connection alone");
        let chunk = vec![b'x'; 1 << 20];
        let (sent, read) = tokio::join!(
            async {
                for _ in 0..200 {
                    stream.send(chunk.clone()).await;
                }
                drop(stream);
            },
            async {
                let mut read = 0;
                while let Some(chunk) = crate::support::client::chunk(&mut answer).await {
                    read += chunk.unwrap().len();
                }
                read
            }
        );
        let () = sent;
        assert_eq!(read, 200 << 20);
    }
    for shard in &mesh.shards {
        assert!(shard.process.memory("VmHWM") < 64 << 20, "{}", shard.name);
    }
}

#[tokio::test]
async fn i13_conversions_and_reviews_leave_nothing_behind() {
    let mut mesh = Mesh::with(Setup { shards: vec!["blue"], ..Setup::default() }).await;
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    for _ in 0..100 {
        let pending = client.send(call(r#"{"kind":"ConversionReview"}"#));
        mesh.shard("blue").operator.call().await.json(200, "{}");
        assert_eq!(text(pending.await.unwrap()).await.0, 200);
    }
    assert_eq!(mesh.shards[0].operator.accepted(), 1, "one connection carries them all");
    assert_eq!(mesh.shards[0].reviews("here").await.to_string(), "0");
}

#[tokio::test]
async fn i13_a_uid_decides_only_where_it_is() {
    const OF_UIDS: &str = "{relateResources: [{apiGroups: [''], resources: [configmaps]}], hash: {of: uid, ranges: [NAME]}}";
    let lower = "{from: '0x0000000000000000', to: '0x8000000000000000'}";
    let upper = "{from: '0x8000000000000000', to: ''}";
    let limit = OF_UIDS.to_owned();
    let mut mesh = Mesh::begin(Setup::default()).await;
    let policy = std::fs::read_to_string(mesh.policy_file()).unwrap();
    let policy = policy
        .replace(&super::mesh::OF_TEAM.replace("NAME", "blue"), &limit.replace("NAME", lower))
        .replace(&super::mesh::OF_TEAM.replace("NAME", "green"), &limit.replace("NAME", upper));
    std::fs::write(mesh.policy_file(), policy).unwrap();
    for shard in &mesh.shards {
        mesh.until_known(shard, 1).await;
        shard.until_open().await;
        let says = || async { shard.ready().await.1 };
        until("the change", says, |text| text.contains("epoch 2")).await;
    }
    // A mutating review of a create has no uid: the pod that got it answers.
    let mut client = mesh.client(&mesh.shards[0], Http::One).await;
    let pending = client.send(call(review("any")));
    mesh.shard("blue").operator.call().await.json(200, "{}");
    assert_eq!(pending.await.unwrap().status(), 200);
    assert_eq!(mesh.shards[0].reviews("unknown").await.to_string(), "1");
    for uid in ["a", "b", "c", "d", "e-1", "e-2", "e-3", "e-4"] {
        let hash = uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let owner = if hash >> 63 == 1 { "green" } else { "blue" };
        let object = json!({"metadata": {"name": "x", "uid": uid}});
        let pending = client.send(call(review_of("UPDATE", &Value::Null, &object)));
        mesh.shard(owner).operator.call().await.json(200, "{}");
        assert_eq!(pending.await.unwrap().status(), 200);
    }
}
