//! Binaries of the plugin folder that could not be asked which plugins they have.
//!
//! Velero would not start. We work without them, but nobody may believe that all is well: each backup and restore says
//! that they were missing, and what they began before is not given up as long as they may come back.

use bowline_engine::report::{Report, ReportSubject};
use bowline_plugin::{Code, Error};
use bowline_plugin_host::Problem;

/// Tells a run which binaries do not take part in it.
pub(crate) fn report_unlisted(unlisted: &[Problem], report: &Report) {
    for Problem { command, reason } in unlisted {
        report.error(
            ReportSubject::Run,
            format!(
                "plugin {}: {reason}; its actions did not take part, since nobody knows what it has: repair or \
                 remove it, and restart the server",
                command.display()
            ),
        );
    }
}

/// Why a backup is not deleted while binaries could not be asked: one of them may have actions that clean up behind its
/// items, and with the backup goes what these need to know.
pub(crate) fn deletion_objections(unlisted: &[Problem]) -> Vec<String> {
    let reason = |Problem { command, reason }: &Problem| {
        format!(
            "plugin {}: {reason}; its delete item actions, if it has any, would not take part: repair or remove \
             it, and restart the server",
            command.display()
        )
    };
    unlisted.iter().map(reason).collect()
}

/// What is answered for a plugin that is not there: `detail` says which one. It may be in a binary that a later start of
/// the server can ask.
pub(crate) fn missing_plugin_error(unlisted: &[Problem], detail: &str) -> Error {
    match unlisted {
        [] => Error::new(Code::NotFound, detail),
        [first, ..] => Error::new(
            Code::Unavailable,
            format!("{detail}; it may be in a binary that could not be asked: {first}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin::Class;

    use super::*;

    fn problem(command: &str) -> Problem {
        Problem { command: command.into(), reason: "it gave no handshake within 60 s".to_owned() }
    }

    #[test]
    fn each_unlisted_binary_is_a_run_error_with_its_reason() {
        let report = Report::default();
        report_unlisted(&[], &report);
        assert_eq!(report.error_count(), 0);
        report_unlisted(&[problem("/plugins/a"), problem("/plugins/b")], &report);
        let (errors, _) = report.messages();
        let texts: Vec<&str> = errors.iter().map(|error| error.text.as_str()).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(
            texts[0].starts_with(
                "plugin /plugins/a: it gave no handshake within 60 s; its actions did not take part"
            ),
            "{texts:?}"
        );
        assert!(texts[1].starts_with("plugin /plugins/b: "), "{texts:?}");
    }

    #[test]
    fn deletion_is_refused_while_plugin_binaries_are_unlisted() {
        assert_eq!(deletion_objections(&[]), Vec::<String>::new());
        let reasons = deletion_objections(&[problem("/plugins/a")]);
        let [reason] = &reasons[..] else { panic!("{reasons:?}") };
        assert!(
            reason.starts_with("plugin /plugins/a: it gave no handshake within 60 s"),
            "{reason}"
        );
        assert!(
            reason.contains("delete item actions") && reason.contains("repair or remove"),
            "{reason}"
        );
    }

    #[test]
    fn missing_plugin_is_retryable_while_a_binary_is_unlisted() {
        let uninstalled = missing_plugin_error(&[], "it is not installed");
        assert_eq!((uninstalled.code(), uninstalled.class()), (Code::NotFound, Class::Permanent));
        assert_eq!(uninstalled.message(), "it is not installed");
        let away = missing_plugin_error(&[problem("/plugins/a")], "it is not installed");
        assert_eq!((away.code(), away.class()), (Code::Unavailable, Class::Transient));
        assert!(away.message().contains("/plugins/a: it gave no handshake"), "{away}");
    }
}
