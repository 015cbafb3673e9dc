//! Runs each model.

use concurrency::{connections, conntrack, disk, tokens};

#[test]
fn appended_bytes_are_written_in_order_and_once() {
    disk::appended_bytes_are_written_in_order_and_once();
}

#[test]
fn waiters_return_when_nothing_is_left_to_write() {
    disk::waiters_return_when_nothing_is_left_to_write();
}

#[test]
fn queue_that_is_closed_ends_its_server() {
    disk::queue_that_is_closed_ends_its_server();
}

#[test]
fn concurrent_clients_share_one_review() {
    tokens::concurrent_clients_share_one_review();
}

#[test]
fn rejection_is_shared_too() {
    tokens::rejection_is_shared_too();
}

#[test]
fn failed_reviews_leave_no_entry() {
    tokens::failed_reviews_leave_no_entry();
}

#[test]
fn bounds_hold_and_every_evicted_connection_is_told() {
    connections::bounds_hold_and_every_evicted_connection_is_told();
}

#[test]
fn last_cleanup_sees_the_last_change() {
    conntrack::last_cleanup_sees_the_last_change();
}

#[test]
fn thread_that_is_closed_ends() {
    conntrack::thread_that_is_closed_ends();
}
