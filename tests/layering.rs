//! The layering rule of `src/lib.rs`, held by reading the sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Each layer may import from itself and from every later one. `gpu` and `net` share a layer and
/// never see each other.
const LAYERS: &[&[&str]] = &[
    &["cli"],
    &["bench", "report", "launch"],
    &["train", "simulate"],
    &["gpu", "net"],
    &["reference", "data", "numerics"],
    &["protocol", "model", "config"],
];

/// What decisions without IO must not touch.
const FORBIDDEN_IN_PROTOCOL: &[&str] =
    &["tokio", "quinn", "wgpu", "Instant", "SystemTime", "std::net", "std::thread", "std::fs"];

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The top-level module of each source file, with its text without comments and tests.
fn modules() -> Vec<(String, PathBuf, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    files
        .into_iter()
        .filter_map(|path| {
            let first = path.strip_prefix(&source).unwrap().iter().next().unwrap();
            let module = first.to_str().unwrap().trim_end_matches(".rs").to_owned();
            if module == "lib" || module == "main" {
                return None;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let code: String = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .flat_map(|line| [line, "\n"])
                .collect();
            Some((module, path, code))
        })
        .collect()
}

fn layer_of(module: &str) -> usize {
    LAYERS
        .iter()
        .position(|layer| layer.contains(&module))
        .unwrap_or_else(|| panic!("module '{module}' has no place in the layering"))
}

/// The modules that `code` names as `crate::module`.
fn imports(code: &str) -> Vec<String> {
    code.split("crate::")
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect())
        .collect()
}

#[test]
fn imports_go_downward_only() {
    let mut wrong = Vec::new();
    for (module, path, code) in modules() {
        let own = layer_of(&module);
        for import in imports(&code) {
            let other = layer_of(&import);
            let strangers = ["gpu", "net"].contains(&&*module)
                && ["gpu", "net"].contains(&&*import)
                && module != import;
            if other < own || strangers {
                wrong.push(format!("{}: {module} imports {import}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "upward imports:\n{}", wrong.join("\n"));
}

#[test]
fn protocol_decides_without_io() {
    let mut wrong = Vec::new();
    for (module, path, code) in modules() {
        if module != "protocol" {
            continue;
        }
        for word in FORBIDDEN_IN_PROTOCOL {
            if code.contains(word) {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "IO in protocol:\n{}", wrong.join("\n"));
}

#[test]
fn bincode_is_named_in_one_file() {
    let users: Vec<PathBuf> = modules()
        .into_iter()
        .filter(|(_, _, code)| code.contains("bincode"))
        .map(|(_, path, _)| path)
        .collect();
    assert!(users.len() <= 1, "{users:?}");
}

#[test]
fn the_map_names_every_module() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    for module in LAYERS.concat() {
        assert!(text.contains(&format!("| [`{module}`]")), "{module} is not in the map of lib.rs");
        assert!(text.contains(&format!("pub mod {module};")), "{module} is in no module");
    }
    for line in text.lines().filter_map(|line| line.strip_prefix("pub mod ")) {
        layer_of(line.trim_end_matches(';'));
    }
}
