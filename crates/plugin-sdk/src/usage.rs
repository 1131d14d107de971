//! Usage text for a person who starts a plugin.

use std::fmt::Write as _;

use bowline_plugin::{Kind, Name};

/// Description of the binary, its plugins, and how to use it.
pub(crate) fn usage_text(command: &str, plugins: &[(Kind, Name)]) -> String {
    let width = plugins.iter().map(|(kind, _)| kind.as_str().len()).max().unwrap_or_default();
    let mut list = String::new();
    for (kind, name) in plugins {
        let _ = writeln!(list, "  {kind:width$}  {name}");
    }
    format!(
        "This is a plugin binary for Bowline and Velero. Their server starts it; started by hand, it does
nothing.

Plugins:
{list}
To see what each plugin applies to:     bowline plugin inspect {command}
To check the contract of each plugin:   bowline plugin check {command}
To install the binary, put it into the server's plugin directory: /plugins, or --plugin-dir.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_text_lists_plugins_and_next_steps() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let plugins = [(Kind::ObjectStore, name("a.io/os")), (Kind::DeleteItemAction, name("a/b"))];
        let text = usage_text("./my-plugin", &plugins);
        assert!(
            text.contains("\n  ObjectStore       a.io/os\n  DeleteItemAction  a/b\n"),
            "{text}"
        );
        assert!(text.contains("bowline plugin inspect ./my-plugin\n"), "{text}");
        assert!(text.contains("/plugins"), "{text}");
    }
}
