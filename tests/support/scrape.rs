//! Requests to the admin port.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Code and body of a page.
pub async fn page(admin: SocketAddr, path: &str) -> (u16, String) {
    let mut tcp = TcpStream::connect(admin).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n");
    tcp.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The sum of the samples of `name` that carry all of `labels`.
pub fn sample(metrics: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let mut sum = 0.0;
    for line in metrics.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let (series_name, series_labels) = series.split_once('{').unwrap_or((series, ""));
        let has =
            |(key, value): &(&str, &str)| series_labels.contains(&format!("{key}=\"{value}\""));
        if series_name == name && labels.iter().all(has) {
            sum += value.parse::<f64>().unwrap();
        }
    }
    sum
}

#[test]
fn samples_are_found_by_name_and_labels() {
    let text = "# TYPE a counter\na_total{x=\"1\",y=\"2\"} 3\na_total{x=\"2\"} 4\nb 5\n";
    assert_eq!(sample(text, "a_total", &[]).to_string(), "7");
    assert_eq!(sample(text, "a_total", &[("x", "1")]).to_string(), "3");
    assert_eq!(sample(text, "b", &[]).to_string(), "5");
    assert_eq!(sample(text, "c", &[]).to_string(), "0");
}
