//! Plugin binaries whose plugins could not be listed.
//!
//! Velero would not start. Bowline works without them, but the gap must be visible: each backup and
//! restore reports the missing binaries, and operations that they started before are not given up
//! as long as the binaries may come back.

use bowline_engine::report::{Report, ReportSubject};
use bowline_plugin::{Code, Error};
use bowline_plugin_host::Problem;

/// Reports to a run the binaries that do not take part in it.
pub(crate) fn report_unlisted(unlisted: &[Problem], report: &Report) {
    for Problem { command, reason } in unlisted {
        report.error(
            ReportSubject::Run,
            format!(
                "plugin {}: {reason}; none of the plugin's actions took part in this run; repair \
                 or remove the plugin, and restart the server",
                command.display()
            ),
        );
    }
}

/// Reasons not to delete a backup while binaries could not be listed: one of them may have delete
/// actions for its items, and the data that these need is deleted with the backup.
pub(crate) fn deletion_objections(unlisted: &[Problem]) -> Vec<String> {
    let reason = |Problem { command, reason }: &Problem| {
        format!(
            "plugin {}: {reason}; delete item actions of the plugin, if any, would not run; \
             repair or remove the plugin, and restart the server",
            command.display()
        )
    };
    unlisted.iter().map(reason).collect()
}

/// Error for a missing plugin, which `detail` names. The plugin may be in a binary that a later
/// start of the server can list.
pub(crate) fn missing_plugin_error(unlisted: &[Problem], detail: &str) -> Error {
    match unlisted {
        [] => Error::new(Code::NotFound, detail),
        [first, ..] => Error::new(
            Code::Unavailable,
            format!(
                "{detail}; the plugin may be in a binary whose plugins could not be listed: \
                 {first}"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use bowline_plugin::Class;

    use super::*;

    fn problem(command: &str) -> Problem {
        Problem { command: command.into(), reason: "no handshake within 60 s".to_owned() }
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
                "plugin /plugins/a: no handshake within 60 s; none of the plugin's actions took part"
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
        assert!(reason.starts_with("plugin /plugins/a: no handshake within 60 s"), "{reason}");
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
        assert!(away.message().contains("/plugins/a: no handshake"), "{away}");
    }
}
