package org.apache.pulsar.tests;

/** Stands in for a class that Apache does not publish: it counts set-ups so that tests can be repeated. */
public abstract class TestRetrySupport {
    protected final void incrementSetupNumber() {}

    protected final void markCurrentSetupNumberCleaned() {}
}
