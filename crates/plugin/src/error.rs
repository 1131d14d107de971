//! Errors of plugins.

use std::fmt;

/// An error of a plugin, or of the connection to it: a code, the text that users see, and the place
/// in the plugin's source that it came from, if the plugin reports it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: Code,
    message: String,
    origin: Option<Origin>,
    is_undelivered: bool,
}

/// The place in a plugin's source that an error came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// `file:line`.
    pub file: String,
    /// The function.
    pub function: String,
}

/// Kind of a failure, with the codes of gRPC, which all plugins use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named and defined by gRPC")]
pub enum Code {
    Cancelled,
    /// Plugins written with Velero's framework return this for every error of their own.
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

/// Meaning of an error for the decision to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A retry will fail as well.
    Permanent,
    /// A retry may succeed: the plugin was unavailable, or took too long.
    Transient,
    /// The plugin does not have the method; for an optional method that is a normal answer.
    Unimplemented,
    /// The plugin does not say. Worth a few retries, not many.
    Unclear,
}

/// Message of Velero's framework for an operation id that a plugin does not know. Only the text
/// identifies this error.
const INVALID_OPERATION: (&str, &str) = ("operation ID ", " is invalid");
const NOT_ASYNCHRONOUS: &str = "does not support asynchronous operations";

impl Error {
    /// An error with a code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), origin: None, is_undelivered: false }
    }

    /// An error without further information.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(Code::Unknown, message)
    }

    /// The plugin does not have `method`.
    pub fn unimplemented(method: &str) -> Self {
        Self::new(Code::Unimplemented, format!("{method} is not implemented"))
    }

    /// The operation `id` is unknown, or no longer known.
    pub fn invalid_operation(id: impl fmt::Display) -> Self {
        let (before, after) = INVALID_OPERATION;
        Self::unknown(format!("{before}{id}{after}"))
    }

    /// The plugin starts no operations, so it has no progress to report.
    pub fn not_asynchronous() -> Self {
        Self::unknown(format!("Plugin {NOT_ASYNCHRONOUS}"))
    }

    /// The same error, with its origin.
    #[must_use]
    pub fn from_origin(mut self, origin: Option<Origin>) -> Self {
        self.origin = origin;
        self
    }

    /// The same error, for a call that certainly never reached the plugin.
    #[must_use]
    pub fn undelivered(mut self) -> Self {
        self.is_undelivered = true;
        self
    }

    /// The same error, its text prefixed with the action that failed.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The text that users see.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The place in the plugin's source that the error came from.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// True if the call certainly never reached the plugin, so that it can be retried whatever it
    /// does.
    pub fn is_undelivered(&self) -> bool {
        self.is_undelivered
    }

    /// Class of the error, which decides whether to retry.
    pub fn class(&self) -> Class {
        match self.code {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Class::Transient,
            Code::Unimplemented => Class::Unimplemented,
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::DataLoss
            | Code::Unauthenticated => Class::Permanent,
            Code::Unknown if is_permanent_message(&self.message) => Class::Permanent,
            Code::Unknown | Code::ResourceExhausted | Code::Aborted | Code::Internal => {
                Class::Unclear
            }
        }
    }
}

/// An error and its causes in one line. A cause that the preceding text already quotes is omitted:
/// some libraries include theirs in their own message. Query strings of URLs are omitted as well,
/// since they may be signed.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if !text.is_empty() && !line.contains(&text) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&text);
        }
        next = cause.source();
    }
    without_queries(&line)
}

/// The text without the query strings of URLs. A signed URL gives access to its object, and some
/// plugins quote theirs in errors.
fn without_queries(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>');
    let mut cleaned = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(scheme) = rest.find("://") {
        let end = rest[scheme..].find(is_end).map_or(rest.len(), |at| scheme + at);
        let (address, after) = rest.split_at(end);
        match address[scheme..].find('?') {
            Some(query) => {
                cleaned.push_str(&address[..=scheme + query]);
                cleaned.push('…');
            }
            None => cleaned.push_str(address),
        }
        rest = after;
    }
    cleaned.push_str(rest);
    cleaned
}

/// True if a text is one of the two with which Velero's framework reports a permanent error.
fn is_permanent_message(message: &str) -> bool {
    let (before, after) = INVALID_OPERATION;
    let invalid = message.find(before).is_some_and(|at| {
        message.get(at + before.len()..).is_some_and(|rest| rest.contains(after))
    });
    invalid || message.contains(NOT_ASYNCHRONOUS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_class_follows_from_code_or_for_go_plugins_from_text() {
        let framework_error = |text: &str| Error::unknown(text);
        for (error, class) in [
            (Error::new(Code::Unavailable, "gone"), Class::Transient),
            (Error::new(Code::DeadlineExceeded, "slow"), Class::Transient),
            (Error::new(Code::NotFound, "no such snapshot"), Class::Permanent),
            (Error::unimplemented("UploadSnapshot"), Class::Unimplemented),
            (Error::invalid_operation("op-1"), Class::Permanent),
            (Error::not_asynchronous(), Class::Permanent),
            (
                framework_error("rpc error: code = Unknown desc = operation ID x y is invalid"),
                Class::Permanent,
            ),
            (framework_error("operation ID is missing"), Class::Unclear),
            (framework_error("the disk is invalid"), Class::Unclear),
            (Error::new(Code::Aborted, "plugin panicked"), Class::Unclear),
        ] {
            assert_eq!(error.class(), class, "{error:?}");
        }
    }

    #[test]
    fn error_chain_joins_causes_without_repeats() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Cause {
            text: &'static str,
            #[source]
            source: Option<Box<Cause>>,
        }
        let chain = ["no route", "cannot dial: no\n  route", "it failed"]
            .into_iter()
            .fold(None, |source, text| Some(Box::new(Cause { text, source })));
        assert_eq!(error_chain(&*chain.unwrap()), "it failed: cannot dial: no route");
    }

    #[test]
    fn url_queries_are_removed() {
        for (text, expected) in [
            ("GET https://a/b?sig=hunter2&x=1 failed?", "GET https://a/b?… failed?"),
            ("\"https://a/b?sig=hunter2\": no", "\"https://a/b?…\": no"),
            ("https://a/b and http://c?d", "https://a/b and http://c?…"),
            ("why? nothing", "why? nothing"),
            ("", ""),
        ] {
            assert_eq!(without_queries(text), expected);
        }
    }

    #[test]
    fn permanent_error_texts_are_those_of_veleros_framework() {
        assert_eq!(Error::invalid_operation("op-1").message(), "operation ID op-1 is invalid");
        assert_eq!(
            Error::not_asynchronous().message(),
            "Plugin does not support asynchronous operations"
        );
    }
}
