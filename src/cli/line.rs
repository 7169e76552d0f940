//! One log line as JSON: time, level, the event's fields, target.
//!
//! The layout is that of tracing-subscriber's flattened JSON. The library serializes each field by
//! serde, which is most of the cost of an access line; this code appends text to a buffer that each
//! thread keeps.

use std::{
    cell::Cell,
    fmt::{self, Debug},
    time::{SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use serde_json::Value;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

/// Writes events as JSON objects, one per line.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonLine;

/// A line under construction, in UTF-8.
#[derive(Default)]
struct Line {
    text: Vec<u8>,
    /// The second of its time since 1970, and how that begins a line.
    second: (u64, String),
}

thread_local! {
    /// The last line of this thread: the next one reuses its memory and its second.
    static LAST: Cell<Line> = Cell::default();
}

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let meta = event.metadata();
        let mut line = LAST.take();
        line.begin(SystemTime::now());
        line.push("\",\"level\":\"");
        line.push(meta.level().as_str());
        line.push("\"");
        event.record(&mut line);
        line.push(",\"target\":");
        line.push_string(meta.target());
        line.push("}\n");
        let text = str::from_utf8(&line.text).map_err(|_| fmt::Error);
        let written = text.and_then(|text| writer.write_str(text));
        LAST.set(line);
        written
    }
}

impl Line {
    fn begin(&mut self, now: SystemTime) {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (second, begun) = &mut self.second;
        if *second != since.as_secs() || begun.is_empty() {
            *second = since.as_secs();
            let time = i64::try_from(*second).ok().and_then(|at| Timestamp::from_second(at).ok());
            let time = time.unwrap_or_default().to_string();
            *begun = format!("{{\"timestamp\":\"{}.", time.trim_end_matches('Z'));
        }
        self.text.clear();
        self.text.extend_from_slice(begun.as_bytes());
        self.push_number(since.subsec_micros().into(), 6);
        self.push("Z");
    }

    fn push(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    /// Appends the name of a field, which is an identifier of the source.
    fn push_name(&mut self, field: &Field) {
        self.push(",\"");
        self.push(field.name());
        self.push("\":");
    }

    fn push_string(&mut self, text: &str) {
        // Every byte is looked at, so that the compiler can look at several at a time.
        let is_quoted = text.bytes().fold(false, |is_quoted, byte| {
            is_quoted | (byte < b' ') | (byte == b'"') | (byte == b'\\')
        });
        if is_quoted {
            self.push(&Value::from(text).to_string());
            return;
        }
        self.push("\"");
        self.push(text);
        self.push("\"");
    }

    /// Appends a number in decimal, with at least `width` digits.
    fn push_number(&mut self, mut value: u64, width: usize) {
        let mut digits = [b'0'; 20];
        let mut count = 0;
        for digit in digits.iter_mut().rev() {
            if value == 0 && count >= width {
                break;
            }
            *digit += u8::try_from(value % 10).unwrap_or_default();
            value /= 10;
            count += 1;
        }
        self.text.extend_from_slice(&digits[digits.len() - count..]);
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push_name(field);
        self.push_string(value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push_name(field);
        self.push_number(value, 1);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push_name(field);
        if value < 0 {
            self.push("-");
        }
        self.push_number(value.unsigned_abs(), 1);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push_name(field);
        self.push(if value { "true" } else { "false" });
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.push_name(field);
        self.push_string(&format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use serde_json::{Value, json};
    use tracing_subscriber::fmt;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(subscriber: impl Subscriber + Send + Sync, lines: &Lines) -> Value {
        tracing::subscriber::with_default(subscriber, || {
            let error = io::Error::other("a \"quoted\" reason");
            tracing::warn!(
                target: "access",
                text = "tab\t, \\, \u{1} and é",
                absent = None::<&str>,
                number = u64::MAX,
                negative = -3,
                is_true = true,
                list = ?["a", "b"],
                %error,
                "the \"message\""
            );
        });
        let text = std::mem::take(&mut *lines.0.lock().unwrap());
        assert!(text.ends_with(b"}\n"));
        let mut line: Value = serde_json::from_slice(&text).unwrap();
        let time = line["timestamp"].take();
        assert!(time.as_str().unwrap().parse::<Timestamp>().is_ok(), "{time}");
        line
    }

    #[test]
    fn a_line_says_what_the_library_says() {
        let lines = Lines::default();
        let writer = lines.clone();
        let base = || {
            let writer = writer.clone();
            fmt().with_writer(move || writer.clone())
        };
        let ours = logged(base().event_format(JsonLine).finish(), &lines);
        let library = base().json().flatten_event(true).with_current_span(false);
        assert_eq!(ours, logged(library.with_span_list(false).finish(), &lines));
        assert_eq!(ours["number"], json!(u64::MAX));
    }
}
