//! Log lines on stderr, as text or JSON.
//!
//! JSON keys: `timestamp` (RFC 3339, UTC), `level`, `target`, `message`, `spans` (outermost first), and the event's own
//! fields beside them.

mod queue;

use std::{
    fmt,
    io::{self, IsTerminal, Write as _},
    panic,
    str::FromStr,
    sync::OnceLock,
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use tracing::Subscriber;
use tracing_subscriber::{
    EnvFilter,
    field::RecordFields,
    fmt::{
        FormatFields, MakeWriter,
        format::{DefaultFields, Writer},
    },
    util::SubscriberInitExt,
};

use crate::printable;
use queue::Queue;

/// The lines of a process that does not wait for stderr.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// How long [`flush`] waits for a stderr that hangs.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text per event, for people.
    #[default]
    Text,
    /// A JSON object per line, for log collectors.
    Json,
}

/// The fields of a line of text, without colours, because others may have written their values.
struct PrintableFields;

/// Directives before those of the operator, who can override them. kube logs each failed request without its cause; the
/// callers of kube log it with its cause. h2 warns of each frame that breaks the protocol: a client could fill the log.
const DEFAULT_DIRECTIVES: &str = "kube_client::client::builder=off,h2=off";

/// Writes all events of this process to stderr. `filter` is a list of directives, as in `info,fairlead_backend=debug`.
/// An event waits until it is written; errors of stderr are ignored.
///
/// # Errors
/// A directive cannot be parsed, or logging is already set up.
pub fn init(format: LogFormat, filter: &str) -> Result<()> {
    subscriber(format, filter, io::stderr().is_terminal(), io::stderr)?.try_init().context("logging is already set up")
}

/// As [`init`], for a process that must go on while stderr hangs: a thread writes the events. At most 4 MiB of them
/// wait, and the number of lost ones is logged. Call [`flush`] before the process ends.
///
/// # Errors
/// As those of [`init`], or the thread cannot be started.
pub fn init_queued(format: LogFormat, filter: &str) -> Result<()> {
    let queue = Queue::default();
    let lines = queue.clone();
    let subscriber = subscriber(format, filter, io::stderr().is_terminal(), move || lines.clone())?;

    let writer = queue.clone();
    let started = thread::Builder::new().name("log".to_owned()).spawn(move || writer.write_to(io::stderr()));
    started.context("cannot start the thread that writes log lines")?;
    subscriber.try_init().context("logging is already set up")?;
    // It is empty: the subscriber is set only once.
    let _ = QUEUE.set(queue);

    // The lines before a panic are needed most. A stderr that hangs would prevent the end of the process.
    let print_panic = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if flush() {
            print_panic(panic);
        }
    }));
    Ok(())
}

/// Writes a line to stderr as it is, after the events so far, also if too many of them wait. Errors of stderr are
/// ignored.
pub fn write_line(line: &str) {
    let line = format!("{line}\n");
    match QUEUE.get() {
        Some(queue) => queue.push(line.as_bytes()),
        // Fails only with stderr, where an error would have to be printed.
        None => drop(io::stderr().write_all(line.as_bytes())),
    }
}

/// Waits until all events are written, for a second at most: a stderr that hangs must not prevent the end of the
/// process. Returns whether all are written.
pub fn flush() -> bool {
    QUEUE.get().is_none_or(|queue| queue.flush(FLUSH_TIMEOUT))
}

fn subscriber<W>(format: LogFormat, filter: &str, is_coloured: bool, to: W) -> Result<Box<dyn Subscriber + Send + Sync>>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::builder()
        .parse(format!("{DEFAULT_DIRECTIVES},{filter}"))
        .with_context(|| format!("log filter {filter:?}: expected directives such as info,fairlead_backend=debug"))?;
    // It would print an error of stderr to stderr, and panic.
    let lines = tracing_subscriber::fmt().log_internal_errors(false).with_env_filter(filter).with_writer(to);
    Ok(match format {
        LogFormat::Text => Box::new(lines.with_ansi(is_coloured).fmt_fields(PrintableFields).finish()),
        // The innermost span is the last of `spans`; a second copy of it under its own key would only cost bytes.
        LogFormat::Json => Box::new(lines.json().flatten_event(true).with_current_span(false).finish()),
    })
}

impl<'writer> FormatFields<'writer> for PrintableFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        fmt::Write::write_str(&mut writer, &printable(&text))
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("unknown log format {name:?}, expected text or json")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(format: LogFormat, filter: &str) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = subscriber(format, filter, false, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::error_span!("task", task = "watch");
            let _entered = span.enter();
            tracing::info!(service = "default/web", endpoints = 3, "pool changed");
            tracing::debug!("filtered out");
        });
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    /// The line of an event, which is empty if the filter does not let it pass.
    fn line(filter: &str, is_coloured: bool, event: fn()) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = subscriber(LogFormat::Text, filter, is_coloured, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, event);
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    /// Whether a filter lets an event pass.
    fn passes(filter: &str, event: fn()) -> bool {
        !line(filter, false, event).is_empty()
    }

    #[test]
    fn text_of_others_is_printable() {
        let event = || {
            let span = tracing::error_span!("stream", node = %"a\u{1b}[2J");
            let _entered = span.enter();
            tracing::info!(object = %"x\u{1b}[2J\ny\u{202e}z", "of \u{200b}\u{1b}[2J");
        };
        let plain = line("info", false, event);
        assert!(plain.contains("object=x [2J y z") && plain.contains("node=a [2J"), "{plain:?}");
        assert_eq!((plain.matches('\n').count(), plain.contains(['\u{1b}', '\u{200b}'])), (1, false), "{plain:?}");
        let coloured = line("info", true, event);
        assert!(coloured.contains('\u{1b}') && !coloured.contains("\u{1b}[2J"), "{coloured:?}");
    }

    #[test]
    fn failures_that_kube_logs_are_hidden_unless_requested() {
        let event =
            || tracing::error!(target: "kube_client::client::builder", "failed with error client error (Connect)");
        assert!(!passes("info", event));
        assert!(!passes("debug", event));
        assert!(passes("info,kube_client::client::builder=error", event));
    }

    #[test]
    fn lines_for_each_frame_of_a_client_are_hidden_unless_requested() {
        let event = || tracing::warn!(target: "h2::proto::ping_pong", "recv PING ack that we never sent");
        assert!(!passes("info", event));
        assert!(passes("info,h2=warn", event));
    }

    #[test]
    fn json_keys_are_stable() {
        let text = lines(LogFormat::Json, "info");
        let mut line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(line["timestamp"].take().as_str().unwrap().ends_with('Z'));
        assert_eq!(
            line,
            serde_json::json!({
                "timestamp": null,
                "level": "INFO",
                "target": "fairlead_runtime::log::tests",
                "message": "pool changed",
                "service": "default/web",
                "endpoints": 3,
                "spans": [{"name": "task", "task": "watch"}],
            }),
        );
    }

    #[test]
    fn text_is_one_plain_line() {
        let text = lines(LogFormat::Text, "info");
        let line = text.strip_suffix('\n').unwrap();
        assert!(line.ends_with(
            "INFO task{task=\"watch\"}: fairlead_runtime::log::tests: pool changed service=\"default/web\" endpoints=3"
        ), "{line}");
        assert!(!line.contains(['\n', '\u{1b}']), "{line:?}");
    }

    #[test]
    fn filter_selects_by_target() {
        assert_eq!(lines(LogFormat::Text, "warn").lines().count(), 0);
        assert_eq!(lines(LogFormat::Text, "warn,fairlead_runtime=debug").lines().count(), 2);
    }

    #[test]
    fn error_names_the_invalid_filter() {
        let error = subscriber(LogFormat::Text, "info,backend=loud", false, io::sink).err().unwrap();
        assert!(error.to_string().contains("info,backend=loud"), "{error:#}");
    }

    #[test]
    fn formats_are_parsed() {
        assert_eq!(["text", "json"].map(str::parse), [Ok(LogFormat::Text), Ok(LogFormat::Json)]);
        assert!("xml".parse::<LogFormat>().unwrap_err().contains("xml"));
    }
}
