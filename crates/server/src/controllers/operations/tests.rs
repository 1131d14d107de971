use bowline_engine::operation::Kind;
use bowline_plugin::{Class, Code, OperationId, ResourceIdentifier};
use jiff::Timestamp;

use super::*;

#[tokio::test]
async fn operation_is_polled_again_while_its_plugin_may_be_in_an_unlisted_binary() {
    let operation = Operation::started(
        Kind::ItemBackup,
        "x.io/action".parse().unwrap(),
        ResourceIdentifier::default(),
        OperationId::new("o").unwrap(),
        Timestamp::UNIX_EPOCH,
        Duration::from_hours(4),
    );
    let unlisted = [Problem { command: "/plugins/x".into(), reason: "it hangs".to_owned() }];
    for (unlisted, expected) in [
        (&[][..], (Code::NotFound, Class::Permanent)),
        (&unlisted, (Code::Unavailable, Class::Transient)),
    ] {
        let actions: ActionClients<dyn BackupItemAction, Backup> =
            ActionClients::new(Vec::new(), Backup::default(), unlisted);
        for error in [
            actions.progress(&operation).await.unwrap_err(),
            actions.cancel(&operation).await.unwrap_err(),
        ] {
            assert_eq!((error.code(), error.class()), expected, "{error}");
            assert!(error.message().contains("x.io/action is no longer installed"), "{error}");
        }
    }
}
