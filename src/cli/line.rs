//! One log line as JSON: time, level, the event's fields, target.
//!
//! The layout is that of tracing-subscriber's flattened JSON. The library serializes each field by
//! serde, which is most of the cost of an access line; this code appends text.

use std::fmt::{self, Debug};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Writes events as JSON objects, one per line.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonLine;

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
        writer.write_str("{\"timestamp\":\"")?;
        SystemTime.format_time(&mut writer)?;
        write!(writer, "\",\"level\":\"{}\"", meta.level())?;
        let mut fields = Fields { writer: &mut writer, result: Ok(()) };
        event.record(&mut fields);
        fields.result?;
        writer.write_str(",\"target\":")?;
        write_string(&mut writer, meta.target())?;
        writer.write_str("}\n")
    }
}

/// Appends the fields until one fails.
struct Fields<'a, 'w> {
    writer: &'a mut Writer<'w>,
    result: fmt::Result,
}

impl Fields<'_, '_> {
    fn add(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        let name = |writer: &mut Writer<'_>| {
            writer.write_char(',')?;
            write_string(writer, field.name())?;
            writer.write_char(':')
        };
        self.result =
            self.result.and_then(|()| name(self.writer)).and_then(|()| value(self.writer));
    }
}

impl Visit for Fields<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, |writer| write_string(writer, value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, |writer| write!(writer, "{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, |writer| write!(writer, "{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, |writer| writer.write_str(if value { "true" } else { "false" }));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, |writer| write_string(writer, &format!("{value:?}")));
    }
}

fn write_string(writer: &mut Writer<'_>, text: &str) -> fmt::Result {
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        let quoted = serde_json::to_string(text).map_err(|_| fmt::Error)?;
        return writer.write_str(&quoted);
    }
    writer.write_char('"')?;
    writer.write_str(text)?;
    writer.write_char('"')
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
        assert!(time.as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{time}");
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
