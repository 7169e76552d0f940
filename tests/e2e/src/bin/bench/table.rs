//! The printed table.

use std::fmt::Write;

use crate::{Args, figures::Series, running::Usage};

/// The relative difference of runs on a machine with other load.
const NOISE: f64 = 0.15;

/// The rows so far.
#[derive(Default)]
pub(crate) struct Table(Vec<[String; 5]>);

/// The bound of a figure of ctrlmesh.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

/// The delay that ctrlmesh may add to reviews: so many milliseconds more than theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    pub(crate) theirs: &'static str,
    pub(crate) more: f64,
}

/// The verdict, if the direct p99 in milliseconds is that of a machine without other load.
fn valid(direct_p99: f64, verdict: impl FnOnce() -> String) -> String {
    const MOST: f64 = 5.0;
    if direct_p99 <= MOST { verdict() } else { format!("void: direct p99 over {MOST} ms") }
}

impl Wanted {
    fn verdict(self, ours: f64, words: &str) -> String {
        let (Self::AtMost(bound) | Self::AtLeast(bound)) = self;
        self.verdict_within(bound.abs() * NOISE, ours, words)
    }

    fn verdict_within(self, noise: f64, ours: f64, words: &str) -> String {
        let (is_met, is_nearly_met) = match self {
            Self::AtMost(bound) => (ours <= bound, ours <= bound + noise),
            Self::AtLeast(bound) => (ours >= bound, ours >= bound - noise),
        };
        let verdict = match (is_met, is_nearly_met) {
            (true, _) => "met",
            (false, true) => "within noise",
            (false, false) => "missed",
        };
        format!("{words}: {verdict}")
    }
}

impl Table {
    /// Adds delays in milliseconds; those of the proxies are their excess over the direct one of
    /// the same round. That of ctrlmesh may exceed haproxy's by `more`.
    pub(crate) fn added(
        &mut self,
        title: &str,
        direct: &Series,
        ours: &Series,
        haproxy: &Series,
        more: f64,
    ) {
        let [ours, haproxy] = [ours, haproxy].map(|way| way.beyond(direct).median());
        let words =
            if more > 0.0 { format!("≤ haproxy + {more} ms") } else { "≤ haproxy".to_owned() };
        self.0.push([
            title.to_owned(),
            format!("{:.2} ms", direct.median()),
            format!("{ours:+.2} ms"),
            format!("{haproxy:+.2} ms"),
            Wanted::AtMost(haproxy + more).verdict(ours, &words),
        ]);
    }

    /// Adds delays in milliseconds, of events that are judged and of the same events passed on.
    pub(crate) fn judged(&mut self, title: &str, [judged, passed]: &[Series; 2]) {
        const WANTED: f64 = 0.1;
        let more = judged.beyond(passed).median();
        self.0.push([
            title.to_owned(),
            "–".to_owned(),
            format!("{:.2} ms ({more:+.2} ms)", judged.median()),
            "–".to_owned(),
            Wanted::AtMost(WANTED).verdict(more, &format!("≤ {WANTED} ms more")),
        ]);
    }

    /// Adds a row in requests per second.
    pub(crate) fn throughput(
        &mut self,
        title: &str,
        direct: &Series,
        ours: &Series,
        haproxy: &Series,
    ) {
        let cell = |way: &Series| {
            let share = way.against(direct).median() * 100.0;
            format!("{:.0} ({share:.0} %)", way.median())
        };
        let [share, wanted] = [ours, haproxy].map(|way| way.against(direct).median());
        self.0.push([
            title.to_owned(),
            format!("{:.0}", direct.median()),
            cell(ours),
            cell(haproxy),
            Wanted::AtLeast(wanted).verdict(share, "≥ haproxy"),
        ]);
    }

    /// Adds a row in microseconds. `twin` is another process of the same program as `ours`: their
    /// difference is noise.
    pub(crate) fn cpu(&mut self, title: &str, ours: &Series, twin: &Series, haproxy: &Series) {
        const WANTED: f64 = 0.95;
        let [ours, twin, haproxy] = [ours, twin, haproxy].map(Series::mean);
        let wanted = Wanted::AtMost(haproxy * WANTED);
        self.0.push([
            title.to_owned(),
            "–".to_owned(),
            format!("{ours:.1} µs (again: {twin:.1} µs)"),
            format!("{haproxy:.1} µs"),
            wanted.verdict_within((ours - twin).abs(), ours, &format!("≤ {WANTED} × haproxy")),
        ]);
    }

    /// Adds a row of counts, which have hardly any noise.
    pub(crate) fn count(&mut self, title: &str, ours: f64, haproxy: f64, most: f64) {
        self.0.push([
            title.to_owned(),
            "–".to_owned(),
            format!("{ours:.0}"),
            format!("{haproxy:.0}"),
            Wanted::AtMost(most).verdict_within(0.0, ours, &format!("≤ {most}")),
        ]);
    }

    /// Adds delays of reviews in milliseconds, as [`Self::added`] does. They are void if the direct
    /// p99 is long: the machine had other things to do.
    pub(crate) fn review(
        &mut self,
        title: &str,
        [direct, ours, haproxy]: [&Series; 3],
        beside: Option<Beside>,
        direct_p99: f64,
    ) {
        let [ours, haproxy] = [ours, haproxy].map(|way| way.beyond(direct).median());
        let wanted = beside.map_or_else(String::new, |Beside { theirs, more }| {
            valid(direct_p99, || {
                let words = format!("≤ {theirs} + {more} ms");
                Wanted::AtMost(haproxy + more).verdict_within(0.0, ours, &words)
            })
        });
        let theirs = format!("{haproxy:+.2} ms");
        self.0.push([
            title.to_owned(),
            format!("{:.2} ms", direct.median()),
            format!("{ours:+.2} ms"),
            theirs,
            wanted,
        ]);
    }

    /// Adds the p99 of reviews in milliseconds. That of ctrlmesh may exceed the direct one by `most`.
    pub(crate) fn bounded(&mut self, title: &str, direct: f64, ours: f64, haproxy: f64, most: f64) {
        let [ours, haproxy] = [ours, haproxy].map(|way| way - direct);
        let words = format!("≤ {most} ms more");
        self.0.push([
            title.to_owned(),
            format!("{direct:.2} ms"),
            format!("{ours:+.2} ms"),
            format!("{haproxy:+.2} ms"),
            valid(direct, || Wanted::AtMost(most).verdict_within(0.0, ours, &words)),
        ]);
    }

    /// Adds a row in microseconds. `theirs` are as many haproxies as there are proxies of ctrlmesh,
    /// which may take `times` as much as `haproxy`, a single one.
    pub(crate) fn cpu_of_reviews(
        &mut self,
        title: &str,
        ours: &Series,
        theirs: &Series,
        haproxy: &Series,
        times: f64,
    ) {
        let [ours, theirs, haproxy] = [ours, theirs, haproxy].map(Series::mean);
        let words = format!("≤ {times} × one haproxy");
        self.0.push([
            title.to_owned(),
            "–".to_owned(),
            format!("{ours:.1} µs ({:.2} × one haproxy)", ours / haproxy),
            format!("{theirs:.1} µs"),
            Wanted::AtMost(haproxy * times).verdict_within(0.0, ours, &words),
        ]);
    }

    /// Adds a row in seconds, in which ctrlmesh may take `wanted` times the direct ones.
    pub(crate) fn ratio(
        &mut self,
        title: &str,
        direct: &Series,
        ours: &Series,
        haproxy: &Series,
        wanted: f64,
    ) {
        let cell =
            |way: &Series| format!("{:.2} s ({:.2} ×)", way.median(), way.against(direct).median());
        let words = format!("≤ {wanted} × direct");
        self.0.push([
            title.to_owned(),
            format!("{:.2} s", direct.median()),
            cell(ours),
            cell(haproxy),
            Wanted::AtMost(wanted).verdict(ours.against(direct).median(), &words),
        ]);
    }

    /// Adds a row in cores, of which there may be `most`.
    pub(crate) fn cores(&mut self, title: &str, ours: f64, most: f64) {
        self.0.push([
            title.to_owned(),
            "–".to_owned(),
            format!("{ours:.2}"),
            "–".to_owned(),
            Wanted::AtMost(most).verdict_within(0.0, ours, &format!("≤ {most}")),
        ]);
    }

    /// Adds a row in megabytes.
    pub(crate) fn memory(&mut self, title: &str, ours: f64, haproxy: f64, most: Option<f64>) {
        self.0.push([
            title.to_owned(),
            "–".to_owned(),
            format!("{ours:.1} MB"),
            format!("{haproxy:.1} MB"),
            most.map_or_else(String::new, |most| {
                Wanted::AtMost(most).verdict(ours, &format!("≤ {most} MB"))
            }),
        ]);
    }

    /// Adds the usage of each proxy before, between and after two halves of many connections.
    pub(crate) fn churn(&mut self, cycles: u32, ours: &[Usage], haproxy: &[Usage]) {
        let cell = |tell: &dyn Fn(&Usage) -> String, seen: &[Usage]| {
            seen.iter().map(tell).collect::<Vec<_>>().join(" → ")
        };
        let mut row = |what: &str, tell: &dyn Fn(&Usage) -> String, wanted: String| {
            let title = format!("{what} before, midway and after {cycles} connections");
            self.0.push([title, "–".to_owned(), cell(tell, ours), cell(tell, haproxy), wanted]);
        };
        let grown = match ours {
            [_, midway, after] => after.rss_mb / midway.rss_mb,
            _ => f64::NAN,
        };
        let no_more = |tell: &dyn Fn(&Usage) -> f64| match (ours.first(), ours.last()) {
            (Some(first), Some(last)) => {
                Wanted::AtMost(tell(first)).verdict(tell(last), "as before")
            }
            _ => String::new(),
        };
        row(
            "RSS",
            &|seen| format!("{:.1} MB", seen.rss_mb),
            Wanted::AtMost(1.02).verdict(grown, "no growth in the second half"),
        );
        row("open files", &|seen| seen.files.to_string(), no_more(&|seen| seen.files as f64));
        row("kernel tasks", &|seen| seen.tasks.to_string(), no_more(&|seen| f64::from(seen.tasks)));
    }

    /// The whole report.
    pub(crate) fn markdown(&self, args: &Args) -> String {
        let mut text = String::from(
            "| what | direct | ctrlmesh | haproxy | wanted |\n|---|---|---|---|---|\n",
        );
        for cells in &self.0 {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        let _ = write!(
            text,
            "\nMedians of {} rounds in which the ways took turns; CPU times are means of twice as many. Delays of the proxies are what they add \
             to the direct one of the same round, shares and multiples are of the direct one. Both \
             proxies: two threads, TLS and HTTP/2 on both legs, the API server verified. ctrlmesh \
             writes its access log and has a policy of 20 limits in force; haproxy logs nothing. \
             Reviews: HTTP/1.1 on both legs, between two ctrlmesh proxies HTTP/2 and mutual TLS; a review \
             has 3.5 KB.\n",
            args.rounds
        );
        text
    }
}
