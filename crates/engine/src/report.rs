//! Warnings and errors of a run.
//!
//! Stages add to the report from many tasks concurrently. Counts, phases and the results file are
//! made from it; the log only repeats it.

use std::error::Error;

use bowline_plugin::ResourceIdentifier;
use bowline_store::file::{Messages, Results};
use parking_lot::Mutex;

/// Number of messages to keep per severity. Further ones are only counted and logged.
const MAX_KEPT_MESSAGES: usize = 10_000;
/// Bytes of messages to keep per severity: a plugin may answer with a long text for each item.
const MAX_KEPT_BYTES: usize = 16 << 20;

/// Text of an error for a report or a status: the error and its causes, separated by colons. A cause with which the
/// text ends already is omitted, since some errors quote theirs. Unlike in
/// [`error_chain`](bowline_plugin::error_chain), line breaks stay: results files show messages of the API server as
/// they are.
pub fn error_text(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let suffix = format!(": {cause}");
        if !text.ends_with(&suffix) {
            text.push_str(&suffix);
        }
        next = cause.source();
    }
    text
}

/// Subject of a message.
#[derive(Clone, Copy, Debug)]
pub enum ReportSubject<'a> {
    /// The run itself: plugins, the bucket, a kind of objects.
    Run,
    /// One object.
    Item(&'a ResourceIdentifier),
}

impl<'a> From<&'a ResourceIdentifier> for ReportSubject<'a> {
    fn from(id: &'a ResourceIdentifier) -> Self {
        Self::Item(id)
    }
}

/// Errors and warnings of a run so far.
#[derive(Debug, Default)]
pub struct Report {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    errors: CountedMessages,
    warnings: CountedMessages,
}

#[derive(Debug, Default)]
struct CountedMessages {
    messages: Vec<Message>,
    /// Bytes of the kept messages.
    bytes: usize,
    count: usize,
}

/// Message of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Item of the message; `None` for the run itself.
    pub item: Option<ResourceIdentifier>,
    /// Text of the message.
    pub text: String,
}

impl Report {
    /// Reports that something failed.
    pub fn error<'a>(&self, about: impl Into<ReportSubject<'a>>, message: impl Into<String>) {
        let (about, message) = (about.into(), message.into());
        match about {
            ReportSubject::Run => tracing::error!("{message}"),
            ReportSubject::Item(id) => tracing::error!(item = %id, "{message}"),
        }
        self.inner.lock().errors.add(Message::new(about, message));
    }

    /// Reports that something was done differently than expected.
    pub fn warn<'a>(&self, about: impl Into<ReportSubject<'a>>, message: impl Into<String>) {
        let (about, message) = (about.into(), message.into());
        match about {
            ReportSubject::Run => tracing::warn!("{message}"),
            ReportSubject::Item(id) => tracing::warn!(item = %id, "{message}"),
        }
        self.inner.lock().warnings.add(Message::new(about, message));
    }

    /// Number of errors.
    pub fn error_count(&self) -> usize {
        self.inner.lock().errors.count
    }

    /// Number of warnings.
    pub fn warning_count(&self) -> usize {
        self.inner.lock().warnings.count
    }

    /// Kept errors and warnings.
    pub fn messages(&self) -> (Vec<Message>, Vec<Message>) {
        let inner = self.inner.lock();
        (inner.errors.messages.clone(), inner.warnings.messages.clone())
    }

    /// Moves all messages so far into a new report. This one may still be shared: no message may be
    /// lost because of that.
    #[must_use]
    pub fn take_all(&self) -> Self {
        Self { inner: Mutex::new(std::mem::take(&mut *self.inner.lock())) }
    }

    /// Adds messages from elsewhere that are in the log already.
    pub fn append(
        &self,
        errors: impl IntoIterator<Item = Message>,
        warnings: impl IntoIterator<Item = Message>,
    ) {
        let mut inner = self.inner.lock();
        errors.into_iter().for_each(|message| inner.errors.add(message));
        warnings.into_iter().for_each(|message| inner.warnings.add(message));
    }

    /// Contents of the results file.
    pub fn results(&self) -> Results {
        let inner = self.inner.lock();
        Results { errors: inner.errors.to_messages(), warnings: inner.warnings.to_messages() }
    }

    /// Adds this report to results that were written before. Messages that they already contain are
    /// not repeated, since an earlier attempt may have reported the same.
    pub fn add_to(&self, results: &mut Results) {
        let more = self.results();
        results.errors.merge(more.errors);
        results.warnings.merge(more.warnings);
    }
}

impl Message {
    fn new(about: ReportSubject<'_>, text: String) -> Self {
        let item = match about {
            ReportSubject::Run => None,
            ReportSubject::Item(id) => Some(id.clone()),
        };
        Self { item, text }
    }
}

impl CountedMessages {
    fn add(&mut self, message: Message) {
        self.count += 1;
        let bytes = self.bytes + message.text.len();
        if self.messages.len() < MAX_KEPT_MESSAGES && bytes <= MAX_KEPT_BYTES {
            self.messages.push(message);
            self.bytes = bytes;
        }
    }

    fn to_messages(&self) -> Messages {
        let mut messages = Messages::default();
        for Message { item, text } in &self.messages {
            match item {
                None => messages.velero.push(text.clone()),
                Some(id) => messages.add(&id.namespace, format!("{}: {text}", ItemInNamespace(id))),
            }
        }
        let more = self.count - self.messages.len();
        if more > 0 {
            messages.velero.push(format!("and {more} more; see the log"));
        }
        messages
    }
}

/// Item within its namespace: `deployments.apps/name`.
struct ItemInNamespace<'a>(&'a ResourceIdentifier);

impl std::fmt::Display for ItemInNamespace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ResourceIdentifier { group, resource, name, .. } = self.0;
        let dot = if group.is_empty() { "" } else { "." };
        write!(f, "{resource}{dot}{group}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str) -> ResourceIdentifier {
        ResourceIdentifier {
            group: String::new(),
            resource: "pods".into(),
            namespace: namespace.into(),
            name: "p".into(),
        }
    }

    #[test]
    fn error_text_has_all_causes_once_and_as_they_are() {
        #[derive(Debug, thiserror::Error)]
        enum Step {
            #[error("the object cannot be created")]
            Create(#[source] Box<Self>),
            #[error("it is refused: {0}")]
            Refuse(#[source] Box<Self>),
            #[error("no rights:\n{{pods}}")]
            Rights,
        }
        let refused = Step::Refuse(Box::new(Step::Rights));
        let expected = "the object cannot be created: it is refused: no rights:\n{pods}";
        assert_eq!(error_text(&Step::Create(Box::new(refused))), expected);
        assert_eq!(error_text(&Step::Rights), "no rights:\n{pods}");
    }

    #[test]
    fn taken_report_is_complete_and_leaves_nothing_behind() {
        let report = Report::default();
        for _ in 0..=MAX_KEPT_MESSAGES {
            report.warn(&pod("web"), "slow");
        }
        let taken_report = report.take_all();
        assert_eq!(
            (taken_report.warning_count(), report.warning_count()),
            (MAX_KEPT_MESSAGES + 1, 0)
        );
        assert_eq!(taken_report.results().warnings.namespaces["web"].len(), MAX_KEPT_MESSAGES);
        assert_eq!(report.results(), Results::default());
    }

    #[test]
    fn messages_are_kept_by_what_they_are_about() {
        let report = Report::default();
        report.error(&pod("web"), "the hook failed");
        report.error(&pod(""), "it is gone");
        report.warn(ReportSubject::Run, "a group does not answer");
        let results = report.results();
        assert_eq!((report.error_count(), report.warning_count()), (2, 1));
        assert_eq!(results.errors.namespaces["web"], ["pods/p: the hook failed"]);
        assert_eq!(results.errors.cluster, ["pods/p: it is gone"]);
        assert_eq!(results.warnings.velero, ["a group does not answer"]);
    }

    #[test]
    fn appended_messages_count_like_own_messages() {
        let (part, whole) = (Report::default(), Report::default());
        part.error(&pod("web"), "the hook failed");
        part.warn(ReportSubject::Run, "slow");
        let (errors, warnings) = part.messages();
        whole.append(errors, warnings);
        assert_eq!(whole.results(), part.results());
        assert_eq!((whole.error_count(), whole.warning_count()), (1, 1));
    }

    #[test]
    fn too_many_messages_are_counted_and_not_kept() {
        let report = Report::default();
        for _ in 0..MAX_KEPT_MESSAGES + 5 {
            report.error(ReportSubject::Run, "no");
        }
        assert_eq!(report.error_count(), MAX_KEPT_MESSAGES + 5);
        let results = report.results();
        assert_eq!(results.errors.velero.len(), MAX_KEPT_MESSAGES + 1);
        assert_eq!(results.errors.velero.last().unwrap(), "and 5 more; see the log");
    }

    #[test]
    fn long_messages_are_kept_up_to_a_total_size() {
        let report = Report::default();
        let long = "x".repeat(64 << 10);
        for _ in 0..1000 {
            report.error(ReportSubject::Run, long.as_str());
        }
        let messages = report.messages().0;
        let bytes: usize = messages.iter().map(|message| message.text.len()).sum();
        assert!((1..=MAX_KEPT_BYTES).contains(&bytes), "{bytes}");
        let more = format!("and {} more; see the log", 1000 - messages.len());
        assert_eq!(report.results().errors.velero.last(), Some(&more));
    }
}
