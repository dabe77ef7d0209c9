//! Event files that TensorBoard reads: the run's scalars.
//!
//! A file is a sequence of records: length, masked CRC-32C of the length, data, masked CRC-32C of
//! the data (TensorFlow's `record_writer.h`). The data are protobuf messages, of which two with a few
//! fields are needed (`event.proto`, `summary.proto`): they are encoded here, since a code generator
//! would be larger than what it makes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use super::metrics::{EpochReport, MetricsLine, StepReport};

/// An open event file.
#[derive(Debug)]
pub struct EventFile(File);

impl EventFile {
    /// Makes a file of this process in a folder. What older files of the folder say of later steps
    /// than this counts no more.
    pub fn create(folder: &Path, step: u64) -> io::Result<EventFile> {
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seconds = seconds.map_or(0, |since| since.as_secs());
        // TensorBoard reads files in the order of their names.
        let name =
            format!("events.out.tfevents.{seconds:010}.{}.{}", host_name(), std::process::id());
        let file = OpenOptions::new().create(true).append(true).open(folder.join(name))?;
        let mut events = EventFile(file);
        let mut version = event(0);
        put_bytes(&mut version, event_field::FILE_VERSION, b"brain.Event:2");
        events.append(&version)?;
        let mut start = event(step);
        let mut session = Vec::new();
        put_varint(&mut session, session_field::STATUS, SESSION_START);
        put_bytes(&mut start, event_field::SESSION_LOG, &session);
        events.append(&start)?;
        Ok(events)
    }

    /// Appends the scalars of a step or an epoch.
    pub fn line(&mut self, line: &MetricsLine) -> io::Result<()> {
        match line {
            MetricsLine::Step(report) => self.scalars(report.step, &of_step(report)),
            MetricsLine::Epoch(report) => self.scalars(report.step, &of_epoch(report)),
        }
    }

    fn scalars(&mut self, step: u64, scalars: &[(&str, f32)]) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in scalars {
            let mut scalar = Vec::new();
            put_bytes(&mut scalar, value_field::TAG, tag.as_bytes());
            put_fixed32(&mut scalar, value_field::SIMPLE_VALUE, *value);
            put_bytes(&mut summary, summary_field::VALUE, &scalar);
        }
        let mut event = event(step);
        put_bytes(&mut event, event_field::SUMMARY, &summary);
        self.append(&event)
    }

    /// One record in one write, so that a reader of a file under way sees whole ones.
    fn append(&mut self, data: &[u8]) -> io::Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(16 + data.len());
        record.extend(length);
        record.extend(masked_crc(&length).to_le_bytes());
        record.extend(data);
        record.extend(masked_crc(data).to_le_bytes());
        self.0.write_all(&record)
    }
}

fn of_step(report: &StepReport) -> Vec<(&'static str, f32)> {
    vec![
        ("train/loss", report.loss as f32),
        ("train/learning_rate", report.lr),
        ("time/step_ms", report.step_ms as f32),
        ("time/compute_ms", report.compute_ms as f32),
        ("time/comm_ms", report.comm_ms as f32),
    ]
}

fn of_epoch(report: &EpochReport) -> Vec<(&'static str, f32)> {
    vec![
        ("train/epoch_loss", report.train_loss as f32),
        ("test/loss", report.test_loss as f32),
        ("test/accuracy", report.test_accuracy as f32),
        ("time/images_per_s", report.images_per_s as f32),
    ]
}

/// Fields of `Event`.
mod event_field {
    pub const WALL_TIME: u32 = 1;
    pub const STEP: u32 = 2;
    pub const FILE_VERSION: u32 = 3;
    pub const SUMMARY: u32 = 5;
    pub const SESSION_LOG: u32 = 7;
}

/// Fields of `Summary`.
mod summary_field {
    pub const VALUE: u32 = 1;
}

/// Fields of `Summary.Value`.
mod value_field {
    pub const TAG: u32 = 1;
    pub const SIMPLE_VALUE: u32 = 2;
}

/// Fields of `SessionLog`.
mod session_field {
    pub const STATUS: u32 = 1;
}

const SESSION_START: u64 = 1;

/// An event of now, without content yet.
fn event(step: u64) -> Vec<u8> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut message = Vec::new();
    put_key(&mut message, event_field::WALL_TIME, WireType::Fixed64);
    message.extend(now.as_secs_f64().to_le_bytes());
    put_varint(&mut message, event_field::STEP, step);
    message
}

/// How a protobuf field's value is written.
#[derive(Clone, Copy)]
enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

fn put_key(message: &mut Vec<u8>, field: u32, wire: WireType) {
    varint(message, u64::from(field << 3 | wire as u32));
}

fn put_varint(message: &mut Vec<u8>, field: u32, value: u64) {
    put_key(message, field, WireType::Varint);
    varint(message, value);
}

fn put_bytes(message: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_key(message, field, WireType::Bytes);
    varint(message, bytes.len() as u64);
    message.extend(bytes);
}

fn put_fixed32(message: &mut Vec<u8>, field: u32, value: f32) {
    put_key(message, field, WireType::Fixed32);
    message.extend(value.to_le_bytes());
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// A checksum of data that hold checksums is weak, so it is masked (TensorFlow's `crc32c.h`).
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// This machine's name, as far as a file's name can have it.
fn host_name() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok())
        .unwrap_or_default();
    let fits = |character: &char| character.is_ascii_alphanumeric() || *character == '-';
    let name: String = name.chars().filter(fits).take(64).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC-32C bit by bit, from its polynomial (Castagnoli, 1993).
    fn crc_by_bits(data: &[u8]) -> u32 {
        !data.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
            })
        })
    }

    fn check(data: &[u8], masked: &[u8]) {
        let masked = u32::from_le_bytes(masked.try_into().unwrap());
        let crc = masked.wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(crc, crc_by_bits(data));
    }

    /// The data of each record, whose checksums hold.
    fn records(mut file: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while !file.is_empty() {
            let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            check(&file[..8], &file[8..12]);
            let data = &file[12..12 + length];
            check(data, &file[12 + length..16 + length]);
            records.push(data.to_vec());
            file = &file[16 + length..];
        }
        records
    }

    fn read_varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = message[0];
            *message = &message[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    /// Number and content of each field: of a varint, its bytes.
    fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut fields = Vec::new();
        while !message.is_empty() {
            let key = read_varint(&mut message);
            let length = match key & 7 {
                0 => {
                    let value = read_varint(&mut message);
                    fields.push((key >> 3, value.to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                2 => read_varint(&mut message) as usize,
                5 => 4,
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, message[..length].to_vec()));
            message = &message[length..];
        }
        fields
    }

    fn field(message: &[u8], number: u64) -> Vec<u8> {
        let found = fields(message).into_iter().find(|(n, _)| *n == number);
        found.unwrap_or_else(|| panic!("no field {number} in {message:?}")).1
    }

    fn epoch() -> EpochReport {
        EpochReport {
            epoch: 1,
            step: 300,
            train_loss: 0.5,
            test_loss: 0.25,
            test_accuracy: 0.75,
            images_per_s: 1_000.0,
            compute_ms: 1.0,
            comm_ms: 1.0,
            wall_s: 1.0,
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = EventFile::create(folder.path(), 200).unwrap();
        events.line(&MetricsLine::Epoch(epoch())).unwrap();
        let path = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("events.out.tfevents.1"), "{name}");

        let records = records(&std::fs::read(&path).unwrap());
        assert_eq!(records.len(), 3);
        assert_eq!(field(&records[0], 3), b"brain.Event:2");
        assert_eq!(field(&field(&records[1], 7), 1), SESSION_START.to_le_bytes());
        assert_eq!(field(&records[1], 2), 200u64.to_le_bytes());
        assert_eq!(field(&records[2], 2), 300u64.to_le_bytes());
        let wall = f64::from_le_bytes(field(&records[2], 1).try_into().unwrap());
        assert!(wall > 1e9, "{wall}");
        let scalars: Vec<(String, f32)> = fields(&field(&records[2], 5))
            .iter()
            .map(|(number, value)| {
                assert_eq!(*number, 1);
                let value_bits = field(value, 2).try_into().unwrap();
                (String::from_utf8(field(value, 1)).unwrap(), f32::from_le_bytes(value_bits))
            })
            .collect();
        let expected = [
            ("train/epoch_loss", 0.5),
            ("test/loss", 0.25),
            ("test/accuracy", 0.75),
            ("time/images_per_s", 1_000.0),
        ];
        assert_eq!(scalars, expected.map(|(tag, value)| (tag.to_owned(), value)));
    }

    /// The check value of CRC-32C, as catalogues of checksums give it.
    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc_by_bits(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }
}
