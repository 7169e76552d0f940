use std::{
    fmt::Write,
    net::{TcpListener, TcpStream},
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

const HEAD: &str =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid";

/// A table of a real pod: the operator on `[::]:9443`, the proxy on loopback, a connection.
const REAL: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:24E3 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 65532        0 53310 1 0000000000000000 100 0 0 10 0
   1: 00000000000000000000000001000000:1543 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1359        0 53299 1 0000000000000000 100 0 0 10 0
   2: 0000000000000000FFFF00000500F40A:1F90 0000000000000000FFFF00000100F40A:A0C2 01 00000000:00000000 02:000001FB 00000000 65532        0 53311 2 0000000000000000 20 4 30 10 -1
";

fn port(number: u16) -> NonZeroU16 {
    number.try_into().unwrap()
}

fn at(text: &str) -> Wanted {
    Wanted::At(text.parse().unwrap())
}

/// A table as the kernel writes it on a machine of this byte order.
fn table(sockets: &[(SocketAddr, u8)]) -> String {
    let mut text = format!("{HEAD}  timeout inode\n");
    for (at, (bound, state)) in sockets.iter().enumerate() {
        let ip: Vec<u8> = match bound.ip() {
            IpAddr::V4(ip) => ip.octets().into(),
            IpAddr::V6(ip) => ip.octets().into(),
        };
        write!(text, "{at:4}: ").unwrap();
        for four in ip.chunks(4) {
            write!(text, "{:08X}", u32::from_ne_bytes(four.try_into().unwrap())).unwrap();
        }
        let peer = "0".repeat(ip.len() * 2);
        let rest = "00000000:00000000 00:00000000 00000000  1000        0 12345 1 0000000000000000";
        writeln!(text, ":{:04X} {peer}:0000 {state:02X} {rest} 100 0 0 10 0", bound.port())
            .unwrap();
    }
    text
}

fn bound(addr: &str) -> String {
    table(&[(addr.parse().unwrap(), 0x0A)])
}

#[test]
fn a_real_table_has_the_ports_that_others_reach() {
    for (number, wanted) in [(9443, true), (5443, false), (8080, false), (41154, false)] {
        assert_eq!(listens(REAL, Wanted::OfPod(port(number))), wanted, "{number}");
    }
    for (addr, wanted) in [
        ("[::1]:5443", true),
        ("127.0.0.1:5443", false),
        ("127.0.0.1:9443", true),
        ("10.244.0.5:9443", true),
        ("10.244.0.5:8080", false),
    ] {
        assert_eq!(listens(REAL, at(addr)), wanted, "{addr}");
    }
}

#[test]
fn a_socket_counts_if_a_connection_reaches_it() {
    // The socket; whether others reach it; addresses that reach it; addresses that do not.
    let cases: [(&str, bool, &[&str], &[&str]); 8] = [
        ("0.0.0.0:1", true, &["127.0.0.1:1", "10.0.0.5:1", "0.0.0.0:1"], &["[::1]:1"]),
        ("[::]:1", true, &["127.0.0.1:1", "10.0.0.5:1", "[::1]:1", "[fd00::1]:1"], &[]),
        ("127.0.0.1:1", false, &["127.0.0.1:1", "0.0.0.0:1"], &["127.0.0.2:1", "[::1]:1"]),
        ("[::1]:1", false, &["[::1]:1", "[::]:1"], &["127.0.0.1:1", "0.0.0.0:1"]),
        ("10.0.0.5:1", true, &["10.0.0.5:1"], &["127.0.0.1:1", "10.0.0.6:1"]),
        ("[fd00::5]:1", true, &["[fd00::5]:1"], &["[::1]:1", "10.0.0.5:1"]),
        ("[::ffff:127.0.0.1]:1", false, &["127.0.0.1:1"], &["[::1]:1"]),
        ("[::ffff:0.0.0.0]:1", true, &["127.0.0.1:1"], &["[::1]:1"]),
    ];
    for (socket, by_others, reached, not) in cases {
        let table = bound(socket);
        assert_eq!(listens(&table, Wanted::OfPod(port(1))), by_others, "{socket}");
        assert!(!listens(&table, Wanted::OfPod(port(2))), "{socket}");
        for addr in reached {
            assert!(listens(&table, at(addr)), "{addr} reaches {socket}");
        }
        for addr in not {
            assert!(!listens(&table, at(addr)), "{addr} does not reach {socket}");
        }
    }
}

#[test]
fn a_table_that_is_torn_or_no_table_has_no_socket() {
    let whole = bound("0.0.0.0:9443");
    assert!(listens(&whole, Wanted::OfPod(port(9443))));
    let end_of_state = whole.find(" 0A ").unwrap() + 3;
    for end in 0..end_of_state {
        assert!(!listens(&whole[..end], Wanted::OfPod(port(9443))), "{}", &whole[..end]);
    }
    for text in [
        "0: 00000000:24E3 x 0a",
        "0: 0000000:24E3 x 0A",
        "0: +0000000:24E3 x 0A",
        "0: 00000000:+4E3 x 0A",
        "0: 00000000:024E3 x 0A",
        "0: 0000000000000000:24E3 x 0A",
        "0: ä0000000:24E3 x 0A",
    ] {
        assert!(!listens(text, Wanted::OfPod(port(9443))), "{text}");
    }
}

/// A second reader, which sees the table as columns.
fn by_columns(table: &str, family: u8) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for line in table.lines().skip(1) {
        let (digits, line) = (if family == 4 { 8 } else { 32 }, &line[6..]);
        let bytes: Vec<u8> = (0..digits / 8)
            .flat_map(|word| {
                let word = &line[word * 8..word * 8 + 8];
                let word =
                    word.chars().fold(0, |sum, digit| sum * 16 + digit.to_digit(16).unwrap());
                word.to_ne_bytes()
            })
            .collect();
        let ip: IpAddr = match family {
            4 => <[u8; 4]>::try_from(bytes).unwrap().into(),
            _ => <[u8; 16]>::try_from(bytes).unwrap().into(),
        };
        let port = u16::from_str_radix(&line[digits + 1..digits + 5], 16).unwrap();
        let state = &line[2 * (digits + 6)..2 * (digits + 6) + 2];
        found.extend((state == "0A").then_some(SocketAddr::new(ip, port)));
    }
    found
}

fn ips(family: u8) -> BoxedStrategy<IpAddr> {
    let usual: &[&str] = match family {
        4 => &["0.0.0.0", "127.0.0.1", "10.0.0.5"],
        _ => &["::", "::1", "fd00::5", "::ffff:10.0.0.5", "::ffff:0.0.0.0"],
    };
    let usual: Vec<IpAddr> = usual.iter().map(|ip| ip.parse().unwrap()).collect();
    let any = match family {
        4 => any::<[u8; 4]>().prop_map(IpAddr::from).boxed(),
        _ => any::<[u8; 16]>().prop_map(IpAddr::from).boxed(),
    };
    prop_oneof![4 => select(usual), 1 => any].boxed()
}

proptest! {
    #[test]
    fn sockets_are_those_that_were_written(
        (family, sockets) in select(vec![4_u8, 6]).prop_flat_map(|family| {
            let socket = (ips(family), 1..20_u16, select(vec![0x01, 0x03, 0x06, 0x0A, 0x0A]));
            let socket = socket.prop_map(|(ip, port, state)| (SocketAddr::new(ip, port), state));
            (Just(family), vec(socket, 0..30))
        })
    ) {
        let text = table(&sockets);
        let found: Vec<_> = Sockets::of(text.as_bytes()).map(Result::unwrap).collect();
        let written = sockets.iter().filter(|(_, state)| *state == 0x0A).map(|(bound, _)| *bound);
        prop_assert_eq!(&found, &written.collect::<Vec<_>>());
        prop_assert_eq!(found, by_columns(&text, family));
    }

    #[test]
    fn any_text_is_read(text: String, number: u16) {
        if let Ok(number) = NonZeroU16::try_from(number) {
            listens(&text, Wanted::OfPod(number));
        }
    }
}

/// A search of the kernel's tables by `/proc` alone.
fn by_proc() -> Search {
    Search { diag: None, ..Search::default() }
}

#[test]
fn the_kernel_is_asked() {
    for (socket, by_others) in
        [("127.0.0.1:0", false), ("0.0.0.0:0", true), ("[::1]:0", false), ("[::]:0", true)]
    {
        let listener = TcpListener::bind(socket).unwrap();
        let addr = listener.local_addr().unwrap();
        let of_pod = Wanted::OfPod(port(addr.port()));
        let mut ways = [Search::default(), by_proc()];
        let mut are_listening = |wanted| {
            let [by_diag, by_proc] = ways.each_mut().map(|search| search.finds(wanted).unwrap());
            assert_eq!(by_diag, by_proc, "{socket}, {wanted:?}");
            by_diag
        };
        assert_eq!(are_listening(of_pod), by_others, "{socket}");
        assert!(are_listening(Wanted::At(addr)), "{socket}");
        let dialled = SocketAddr::new(dialled(addr.ip()), addr.port());
        let _open = TcpStream::connect(dialled).unwrap();
        drop(listener);
        // The connection is still there, at the same port.
        assert!(!are_listening(of_pod), "{socket}");
        assert!(!are_listening(Wanted::At(addr)), "{socket}");
        assert!(!are_listening(Wanted::At(SocketAddr::new(addr.ip(), 0))), "{socket}");
        assert!(ways[0].diag.is_some(), "by sock_diag");
    }
}

#[test]
fn many_sockets_of_a_port_are_all_seen() {
    let first = server(None);
    let addr = first.local_addr().unwrap();
    // More than a part of the kernel's answer holds: 80 bytes each.
    let all: Vec<_> = (0..300).map(|_| server(Some(addr))).collect();
    let mut diag = Diag::open().unwrap();
    for _ in 0..3 {
        let mut seen = 0;
        let counts = |bound| {
            seen += usize::from(bound == addr);
            false
        };
        assert!(!diag.any(addr.port(), counts).unwrap());
        assert_eq!(seen, 1 + all.len());
    }
}

/// A server that shares its port with others.
fn server(addr: Option<SocketAddr>) -> TcpListener {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    let addr = addr.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into());
    socket.bind(&addr.into()).unwrap();
    socket.listen(1).unwrap();
    socket.into()
}

#[test]
fn a_kernel_without_sock_diag_is_asked_by_its_tables() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("tcp"), dir.path().join("tcp6"));
    std::fs::write(&first, bound("0.0.0.0:9443")).unwrap();
    // No one in the kernel answers this protocol.
    let mut diag = Diag::by(netlink_sys::protocols::NETLINK_USERSOCK).unwrap();
    assert!(diag.any(9443, |_| true).is_err());
    let mut search = Search { diag: Some(diag), ..Search::of(&first, &second) };
    assert!(search.finds(Wanted::OfPod(port(9443))).unwrap());
    assert!(search.diag.is_none());
    assert!(Diag::by(1000).is_err());
}

#[test]
fn a_machine_without_ipv6_has_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("tcp"), dir.path().join("tcp6"));
    let asked = || Search::of(&first, &second).finds(Wanted::OfPod(port(9443)));
    assert_eq!(asked().unwrap_err().kind(), io::ErrorKind::NotFound);
    std::fs::write(&first, bound("0.0.0.0:8080")).unwrap();
    assert!(!asked().unwrap());
    std::fs::write(&second, bound("[::]:9443")).unwrap();
    assert!(asked().unwrap());
}

#[test]
fn the_table_of_most_servers_is_read_first_and_then_that_of_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("tcp"), dir.path().join("tcp6"));
    let mut search = Search::of(&first, &second);
    let mut finds = || search.finds(Wanted::OfPod(port(9443))).unwrap();
    // A table that is not there would be an error.
    std::fs::write(&second, bound("[::]:9443")).unwrap();
    assert!(finds());
    std::fs::write(&second, bound("[::]:8080")).unwrap();
    std::fs::write(&first, bound("0.0.0.0:9443")).unwrap();
    assert!(finds());
    // From now on the first is: the second is not even opened.
    std::fs::remove_file(&second).unwrap();
    std::fs::create_dir(&second).unwrap();
    assert!(finds());
    std::fs::remove_dir(&second).unwrap();
    std::fs::write(&first, bound("0.0.0.0:8080")).unwrap();
    assert!(!finds());
    std::fs::write(&second, bound("[::]:9443")).unwrap();
    assert!(finds());
}

/// A table as the kernel hands it out: it makes lines until it has what was asked for, and keeps the
/// rest of the last.
struct Kernel<'a> {
    lines: std::str::SplitInclusive<'a, char>,
    rest: &'a [u8],
    made: usize,
}

impl Read for &mut Kernel<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < into.len() {
            if self.rest.is_empty() {
                let Some(line) = self.lines.next() else { break };
                (self.rest, self.made) = (line.as_bytes(), self.made + 1);
            }
            let count = self.rest.len().min(into.len() - written);
            let (now, rest) = self.rest.split_at(count);
            into[written..written + count].copy_from_slice(now);
            (self.rest, written) = (rest, written + count);
        }
        Ok(written)
    }
}

#[test]
fn the_kernel_is_not_asked_for_more_lines_than_tell() {
    for family in ["0.0.0.0", "[::]"] {
        for before in 0..40 {
            let mut ports: Vec<_> = (1..=before).chain([9443]).collect();
            ports.push(8080);
            let socket = |port: u16| (format!("{family}:{port}").parse().unwrap(), 0x0A);
            let text = table(&ports.into_iter().map(socket).collect::<Vec<_>>());
            let mut kernel = Kernel { lines: text.split_inclusive('\n'), rest: &[], made: 0 };
            let table = BufReader::with_capacity(CHUNK, &mut kernel);
            let mut sockets = Sockets::of(table).map(Result::unwrap);
            assert!(sockets.any(|bound| bound.port() == 9443));
            drop(sockets);
            // The heading and those up to it.
            assert_eq!(kernel.made, usize::from(before) + 2, "{family}, {before}");
        }
    }
}

#[test]
fn a_huge_table_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let (huge, none) = (dir.path().join("tcp"), dir.path().join("none"));
    let socket = |port| (SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), 0x0A);
    let mut sockets = vec![socket(1)];
    sockets.extend(vec![("10.0.0.5:8080".parse().unwrap(), 0x06); 100_000]);
    sockets.push(socket(2));
    std::fs::write(&huge, table(&sockets)).unwrap();
    let asked = |number| Search::of(&huge, &none).finds(Wanted::OfPod(port(number))).unwrap();
    // The thread's own time: that of others is no part of it.
    let spent = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let start = spent();
    assert!(asked(1));
    assert!(!asked(2), "what is listed after a megabyte is not looked for");
    let took = spent() - start;
    assert!(took < Duration::from_secs(1), "{took:?}");
}
