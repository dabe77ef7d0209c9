//! README.md is right where a program can tell: its commands parse, its Rust is in the examples, and
//! what it names is there.

use std::fs;
use std::path::Path;

use annulet::cli::Cli;
use clap::Parser;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The contents of the README's fenced blocks of a language.
fn blocks(language: &str) -> Vec<String> {
    let text = read("README.md");
    let mut parts = text.split("\n```");
    let mut blocks = Vec::new();
    while let (Some(_), Some(block)) = (parts.next(), parts.next()) {
        if let Some(content) = block.strip_prefix(language).and_then(|b| b.strip_prefix('\n')) {
            blocks.push(content.to_owned());
        }
    }
    blocks
}

/// The words of each call of annulet in a shell block.
fn calls(block: &str) -> Vec<Vec<String>> {
    let joined = block.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.split(" #").next().unwrap());
    lines
        .flat_map(|line| line.split("&&"))
        .map(|command| command.replace("cargo run --release --", "annulet"))
        .map(|command| command.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter(|words| words.first().is_some_and(|word| word == "annulet"))
        .collect()
}

#[test]
fn every_command_parses() {
    let calls: Vec<_> = blocks("sh").iter().flat_map(|block| calls(block)).collect();
    assert!(calls.len() > 25, "{} calls were found", calls.len());
    for words in calls {
        if let Err(error) = Cli::try_parse_from(&words) {
            panic!("{}\n{error}", words.join(" "));
        }
    }
}

#[test]
fn the_rust_is_that_of_the_examples() {
    let examples = read("examples/train_in_threads.rs") + &read("examples/allreduce.rs");
    let examples: Vec<&str> = examples.lines().map(str::trim).collect();
    let blocks = blocks("rust");
    assert_eq!(blocks.len(), 2);
    for line in blocks.iter().flat_map(|block| block.lines()).map(str::trim) {
        assert!(examples.contains(&line), "no example has the README's line: {line}");
    }
}

#[test]
fn what_is_named_is_there() {
    let text = read("README.md");
    let is_path = |word: &&str| {
        ["src/", "tests/", "examples/", "benches/", "shaders/"].iter().any(|f| word.starts_with(f))
            && !word.contains(' ')
    };
    let paths: Vec<&str> = text.split('`').filter(is_path).collect();
    assert!(paths.len() > 15, "{paths:?}");
    for path in paths {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        assert!(file.exists(), "README names {path}");
    }
}
