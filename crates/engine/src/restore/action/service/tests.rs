use super::super::tests::{changes, execute, restore};
use super::*;
use serde_json::json;

fn removing(service: &mut Value) -> bool {
    change(service, false).unwrap()
}

/// A Service with this last-applied configuration.
fn applied(applied: &Value, spec: &Value) -> Value {
    let annotations = json!({LAST_APPLIED: applied.to_string()});
    json!({"metadata": {"annotations": annotations}, "spec": spec})
}

/// A Service whose fields have these owners.
fn managed(fields: &[Value], spec: &Value) -> Value {
    let entries: Vec<_> = fields.iter().map(|fields| json!({"fieldsV1": fields})).collect();
    json!({"metadata": {"managedFields": entries}, "spec": spec})
}

#[test]
fn cluster_ips_are_removed_unless_headless() {
    let families = json!({"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "PreferDualStack"});
    let mut with_addresses = families.clone();
    with_addresses["clusterIP"] = "fd00::1".into();
    with_addresses["clusterIPs"] = json!(["fd00::1", "10.0.0.1"]);
    let headless = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]});
    changes(
        removing,
        [
            ("no address", json!({"spec": {"ports": [{"port": 80}]}}), None),
            ("none on purpose", json!({"spec": headless}), None),
            ("one", json!({"spec": {"clusterIP": "10.0.0.1"}}), Some(json!({"spec": {}}))),
            (
                "two, whose families stay",
                json!({"spec": with_addresses}),
                Some(json!({"spec": families})),
            ),
        ],
    );
}

#[test]
fn applied_node_ports_are_kept() {
    let named = |port: u64| json!({"name": "http", "port": 80, "nodePort": port});
    let spec = |ports: Value| json!({"spec": {"type": "NodePort", "ports": ports}});
    let http = spec(json!([named(30080)]));
    let unnamed = spec(json!([{"port": 80, "nodePort": 30080}]));
    let cleared = spec(json!([{"name": "http", "port": 80}]));
    let of = |last: &Value, service: &Value| applied(last, &service["spec"]);
    // Ownership is ignored if there is a last-applied configuration.
    let mut owned_too = of(&spec(json!([{"name": "http"}])), &http);
    let owner =
        json!({"f:spec": {"f:ports": {r#"k:{"port":80,"protocol":"TCP"}"#: {"f:nodePort": {}}}}});
    owned_too["metadata"]["managedFields"] = json!([{"fieldsV1": owner}]);
    let mut owned_too_cleared = owned_too.clone();
    owned_too_cleared["spec"] = cleared["spec"].clone();
    let zero = spec(json!([named(0)]));
    changes(
        removing,
        [
            ("by name", of(&http, &http), None),
            ("by name, whatever the number", of(&spec(json!([named(31000)])), &http), None),
            ("by number", of(&unnamed, &unnamed), None),
            ("as a text", of(&spec(json!([{"port": 80, "nodePort": "30080"}])), &unnamed), None),
            ("a zero", of(&zero, &http), Some(of(&zero, &cleared))),
            (
                "another name",
                of(&spec(json!([{"name": "https", "nodePort": 30080}])), &http),
                Some(of(&spec(json!([{"name": "https", "nodePort": 30080}])), &cleared)),
            ),
            (
                "another number",
                of(&spec(json!([{"port": 80, "nodePort": 31000}])), &unnamed),
                Some(of(
                    &spec(json!([{"port": 80, "nodePort": 31000}])),
                    &spec(json!([{"port": 80}])),
                )),
            ),
            ("nothing said of ports", of(&json!({}), &http), Some(of(&json!({}), &cleared))),
            ("owned, but not applied", owned_too, Some(owned_too_cleared)),
        ],
    );
}

#[test]
fn owned_node_ports_are_kept_without_last_applied() {
    let spec = json!({"ports": [
        {"port": 80, "protocol": "TCP", "nodePort": 30080},
        {"port": 80, "protocol": "UDP", "nodePort": 30081},
        {"port": 443, "nodePort": 30443},
    ]});
    let owner = |port: &str, protocol: &str, field: &str| {
        let key = format!(r#"k:{{"port":{port},"protocol":"{protocol}"}}"#);
        json!({"f:spec": {"f:ports": {".": {}, key: {".": {}, field: {}}}}})
    };
    let http = owner("80", "TCP", "f:nodePort");
    let https = owner("443", "TCP", "f:nodePort");
    let port_only = owner("80", "UDP", "f:port");
    let mut cleared = spec.clone();
    cleared["ports"][1] = json!({"port": 80, "protocol": "UDP"});
    let none = json!({"ports": [
        {"port": 80, "protocol": "TCP"}, {"port": 80, "protocol": "UDP"}, {"port": 443},
    ]});
    let owners = [http, https, port_only, json!(null)];
    changes(
        removing,
        [
            ("two of three", managed(&owners, &spec), Some(managed(&owners, &cleared))),
            ("none", managed(&[], &spec), Some(managed(&[], &none))),
        ],
    );
}

#[test]
fn applied_or_owned_health_check_port_is_kept() {
    let balancer = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
    });
    let cleared = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let cluster = json!({"externalTrafficPolicy": "Cluster", "healthCheckNodePort": 31000});
    let chosen = json!({"spec": {"healthCheckNodePort": 31000}});
    let zero = json!({"spec": {"healthCheckNodePort": 0}});
    let owner = json!({"f:spec": {"f:healthCheckNodePort": {}}});
    let other = json!({"f:spec": {"f:type": {}}});
    let mut both = applied(&json!({}), &balancer);
    both["metadata"]["managedFields"] = json!([{"fieldsV1": owner}]);
    changes(
        removing,
        [
            ("nobody's", json!({"spec": balancer}), Some(json!({"spec": cleared}))),
            ("applied", applied(&chosen, &balancer), None),
            ("applied as zero", applied(&zero, &balancer), Some(applied(&zero, &cleared))),
            ("owned", managed(std::slice::from_ref(&owner), &balancer), None),
            ("owned, and something else applied", both, None),
            (
                "another field owned",
                managed(std::slice::from_ref(&other), &balancer),
                Some(managed(std::slice::from_ref(&other), &cleared)),
            ),
            ("of no use", json!({"spec": cluster}), None),
        ],
    );
}

#[test]
fn external_name_is_unchanged_and_broken_last_applied_is_an_error() {
    let external = json!({"spec": {
        "type": "ExternalName", "externalName": "example.io", "ports": [{"port": 80, "nodePort": 1}],
    }});
    changes(removing, [("names outside have no ports of nodes", external, None)]);

    for (broken, words) in [
        ("{", "is not JSON"),
        (r#"{"spec":{"ports":[{"nodePort":"many"}]}}"#, "nodePort that is not a number"),
    ] {
        let mut service = json!({"metadata": {"annotations": {LAST_APPLIED: broken}}});
        let error = change(&mut service, false).unwrap_err();
        assert!(error.message().contains(words), "{error}");
        assert_eq!(change(&mut service, true), Ok(false));
    }
}

#[tokio::test]
async fn node_ports_are_kept_with_preserve_node_ports() {
    let service = json!({"kind": "Service", "spec": {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 31000,
        "clusterIP": "10.0.0.1",
        "ports": [{"port": 80, "nodePort": 30080}],
    }});
    for (spec, is_preserved) in [
        (json!({"preserveNodePorts": true}), true),
        (json!({"preserveNodePorts": false}), false),
        (json!({}), false),
    ] {
        let output = execute(&Service, &service, &restore(spec)).await.unwrap();
        let restored: Value = output.item.parse().unwrap();
        assert_eq!(restored.pointer("/spec/ports/0/nodePort").is_some(), is_preserved);
        assert_eq!(restored.pointer("/spec/healthCheckNodePort").is_some(), is_preserved);
        assert_eq!(restored.pointer("/spec/clusterIP"), None);
    }
}
