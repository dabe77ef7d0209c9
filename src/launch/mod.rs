//! Local worker processes.
