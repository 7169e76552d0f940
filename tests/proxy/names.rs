//! The listener where the API server's names lead, next to the first one.

use ctrlmesh::net::{ClusterDomain, tls::H2};
use http::Method;
use tokio::net::TcpListener;

use crate::{
    redirected::in_own_network,
    support::{
        client::{self, Client, Http, config, connect, request},
        pki::Ca,
        proxy::{Files, Setup},
        upstream::{Behaviour, Upstream},
    },
};

/// In a network of the test's own, where root may listen on any port.
#[test]
fn i20_a_client_by_a_name_is_served_as_one_by_the_address() {
    in_own_network(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut upstream =
            Upstream::on(listener, Ca::new("the cluster's CA"), Behaviour::default());
        let setup = Setup {
            listen: "127.0.0.1:5443".parse().unwrap(),
            listen_names: Some("127.0.0.1:443".parse().unwrap()),
            ..Setup::of(&upstream)
        };
        let proxy = setup.start(Files::new(&upstream.ca.pem)).await;
        let mut asked = 0.0;
        for addr in ["127.0.0.1:443", "[::1]:443", "127.0.0.1:5443"] {
            let host = if addr.starts_with('[') { "::1" } else { "127.0.0.1" };
            for name in ClusterDomain::default().service_names().chain([host.to_owned()]) {
                let trust = config(&proxy.files.mesh_ca_pem(), &[H2]);
                let tls = connect(addr.parse().unwrap(), trust, &name).await.unwrap();
                let mut client = Client::over(tls, Http::Two, 1 << 16).await;
                let pending = client.send(request(Method::GET, "/api/v1/configmaps"));
                let call = upstream.call().await;
                assert_eq!(call.query("labelSelector").as_deref(), Some("shard=blue"));
                call.json(200, "{}");
                assert_eq!(client::text(pending.await.unwrap()).await.0, 200);
                asked += 1.0;
                let labels = [("leg", "outbound"), ("verb", "list"), ("decision", "scoped")];
                proxy.until_metric("ctrlmesh_requests_total", &labels, asked).await;
            }
        }
    });
}
