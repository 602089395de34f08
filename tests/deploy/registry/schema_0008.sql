-- The tables of a registry on SQLite as the migrations up to revision 0008 made them one by one,
-- before they became one baseline.
CREATE TABLE sweepd_registry_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT sweepd_registry_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE bundles (
    hash TEXT NOT NULL,
    members_sha256 TEXT NOT NULL,
    environment TEXT NOT NULL,
    study TEXT NOT NULL,
    study_uid TEXT NOT NULL,
    trial INTEGER NOT NULL,
    data_dir TEXT NOT NULL,
    at TEXT NOT NULL, kind TEXT DEFAULT 'market' NOT NULL, timeframe TEXT, tickers JSON, last_seen BIGINT,
    CONSTRAINT pk_bundles PRIMARY KEY (hash)
);
CREATE INDEX ix_bundles_members_sha256 ON bundles (members_sha256);
CREATE TABLE slots (
    name TEXT NOT NULL,
    champion TEXT,
    previous TEXT,
    revision INTEGER NOT NULL,
    CONSTRAINT pk_slots PRIMARY KEY (name),
    CONSTRAINT fk_slots_champion FOREIGN KEY(champion) REFERENCES bundles (hash),
    CONSTRAINT fk_slots_previous FOREIGN KEY(previous) REFERENCES bundles (hash)
);
CREATE TABLE versions (
    slot TEXT NOT NULL,
    number INTEGER NOT NULL,
    bundle TEXT NOT NULL,
    at TEXT NOT NULL,
    CONSTRAINT pk_versions PRIMARY KEY (slot, number),
    CONSTRAINT uq_versions_slot UNIQUE (slot, bundle),
    CONSTRAINT fk_versions_bundle FOREIGN KEY(bundle) REFERENCES bundles (hash)
);
CREATE TABLE events (
    id INTEGER NOT NULL,
    slot TEXT NOT NULL,
    kind TEXT NOT NULL,
    at TEXT NOT NULL,
    bundle TEXT,
    previous TEXT,
    reason TEXT NOT NULL,
    report JSON,
    CONSTRAINT pk_events PRIMARY KEY (id),
    CONSTRAINT fk_events_bundle FOREIGN KEY(bundle) REFERENCES bundles (hash),
    CONSTRAINT fk_events_previous FOREIGN KEY(previous) REFERENCES bundles (hash)
);
CREATE INDEX ix_events_slot ON events (slot);
CREATE TABLE challengers (
    slot TEXT NOT NULL,
    bundle TEXT NOT NULL,
    at TEXT NOT NULL,
    CONSTRAINT pk_challengers PRIMARY KEY (slot, bundle),
    CONSTRAINT fk_challengers_bundle FOREIGN KEY(bundle) REFERENCES bundles (hash)
);
CREATE TABLE traders (
    slot TEXT NOT NULL,
    token TEXT NOT NULL,
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    broker TEXT NOT NULL,
    feed TEXT NOT NULL,
    timeframe TEXT NOT NULL,
    started TEXT NOT NULL,
    beat TEXT NOT NULL,
    status TEXT NOT NULL,
    account TEXT,
    last_bar BIGINT,
    halt TEXT,
    halt_sells BOOLEAN NOT NULL,
    session JSON NOT NULL,
    CONSTRAINT pk_traders PRIMARY KEY (slot)
);
CREATE TABLE lanes (
    slot TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    bundle TEXT,
    since BIGINT NOT NULL,
    retired TEXT,
    state JSON NOT NULL,
    CONSTRAINT pk_lanes PRIMARY KEY (slot, name),
    CONSTRAINT fk_lanes_slot FOREIGN KEY(slot) REFERENCES traders (slot),
    CONSTRAINT fk_lanes_bundle FOREIGN KEY(bundle) REFERENCES bundles (hash)
);
CREATE TABLE lane_bars (
    slot TEXT NOT NULL,
    lane TEXT NOT NULL,
    time BIGINT NOT NULL,
    bundle TEXT,
    value DOUBLE NOT NULL,
    cash DOUBLE NOT NULL,
    fees DOUBLE NOT NULL,
    notional DOUBLE NOT NULL,
    flow DOUBLE DEFAULT '0' NOT NULL,
    trades INTEGER NOT NULL,
    unfilled INTEGER NOT NULL,
    dropped INTEGER NOT NULL,
    crossed DOUBLE NOT NULL,
    units JSON NOT NULL,
    action JSON,
    CONSTRAINT pk_lane_bars PRIMARY KEY (slot, lane, time)
);
CREATE TABLE orders (
    client_id TEXT NOT NULL,
    slot TEXT NOT NULL,
    lane TEXT NOT NULL,
    decided BIGINT NOT NULL,
    ticker TEXT NOT NULL,
    side TEXT NOT NULL,
    units DOUBLE NOT NULL,
    notional DOUBLE NOT NULL,
    whole BOOLEAN NOT NULL,
    restart_clock BOOLEAN NOT NULL,
    status TEXT NOT NULL,
    at BIGINT,
    filled_units DOUBLE NOT NULL,
    filled_notional DOUBLE NOT NULL,
    fee DOUBLE NOT NULL,
    price DOUBLE NOT NULL,
    reason TEXT NOT NULL,
    CONSTRAINT pk_orders PRIMARY KEY (client_id)
);
CREATE INDEX ix_orders_slot ON orders (slot);
CREATE TABLE trader_events (
    id INTEGER NOT NULL,
    slot TEXT NOT NULL,
    at TEXT NOT NULL,
    bar BIGINT,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    CONSTRAINT pk_trader_events PRIMARY KEY (id)
);
CREATE INDEX ix_trader_events_slot ON trader_events (slot);
CREATE TRIGGER versions_no_update BEFORE UPDATE ON versions BEGIN SELECT RAISE(ABORT, 'rows of versions are append-only'); END;
CREATE TRIGGER versions_no_delete BEFORE DELETE ON versions BEGIN SELECT RAISE(ABORT, 'rows of versions are append-only'); END;
CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'rows of events are append-only'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'rows of events are append-only'); END;
CREATE TRIGGER lane_bars_no_update BEFORE UPDATE ON lane_bars BEGIN SELECT RAISE(ABORT, 'rows of lane_bars are append-only'); END;
CREATE TRIGGER lane_bars_no_delete BEFORE DELETE ON lane_bars BEGIN SELECT RAISE(ABORT, 'rows of lane_bars are append-only'); END;
CREATE TRIGGER trader_events_no_update BEFORE UPDATE ON trader_events BEGIN SELECT RAISE(ABORT, 'rows of trader_events are append-only'); END;
CREATE TRIGGER trader_events_no_delete BEFORE DELETE ON trader_events BEGIN SELECT RAISE(ABORT, 'rows of trader_events are append-only'); END;
CREATE TRIGGER bundles_no_update BEFORE UPDATE ON bundles BEGIN SELECT RAISE(ABORT, 'rows of bundles are append-only'); END;
CREATE TRIGGER bundles_no_delete BEFORE DELETE ON bundles BEGIN SELECT RAISE(ABORT, 'rows of bundles are append-only'); END;
CREATE TABLE evaluations (
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    timeframe TEXT,
    first BIGINT,
    last BIGINT,
    games INTEGER,
    number INTEGER NOT NULL,
    members_sha256 TEXT NOT NULL,
    study TEXT NOT NULL,
    study_uid TEXT NOT NULL,
    trial INTEGER NOT NULL,
    at TEXT NOT NULL,
    CONSTRAINT pk_evaluations PRIMARY KEY (id)
);
CREATE INDEX ix_evaluations_subject ON evaluations (subject);
CREATE TRIGGER evaluations_no_update BEFORE UPDATE ON evaluations BEGIN SELECT RAISE(ABORT, 'rows of evaluations are append-only'); END;
CREATE TRIGGER evaluations_no_delete BEFORE DELETE ON evaluations BEGIN SELECT RAISE(ABORT, 'rows of evaluations are append-only'); END;
CREATE TABLE trader_bars (
    slot TEXT NOT NULL,
    ticker TEXT NOT NULL,
    time BIGINT NOT NULL,
    open DOUBLE NOT NULL,
    high DOUBLE NOT NULL,
    low DOUBLE NOT NULL,
    close DOUBLE NOT NULL,
    volume DOUBLE NOT NULL,
    hole BOOLEAN NOT NULL,
    CONSTRAINT pk_trader_bars PRIMARY KEY (slot, ticker, time)
);
CREATE INDEX ix_trader_bars_time ON trader_bars (slot, time);
CREATE TRIGGER trader_bars_no_update BEFORE UPDATE ON trader_bars BEGIN SELECT RAISE(ABORT, 'rows of trader_bars are append-only'); END;
CREATE TRIGGER trader_bars_no_delete BEFORE DELETE ON trader_bars BEGIN SELECT RAISE(ABORT, 'rows of trader_bars are append-only'); END;
CREATE INDEX ix_orders_newest ON orders (slot, lane, decided, client_id);
CREATE TABLE parity_days (
    slot TEXT NOT NULL,
    day BIGINT NOT NULL,
    bars INTEGER NOT NULL,
    decisions INTEGER NOT NULL,
    action DOUBLE NOT NULL,
    growth DOUBLE NOT NULL,
    simulated DOUBLE NOT NULL,
    bar DOUBLE NOT NULL,
    at TEXT NOT NULL, unexplained DOUBLE DEFAULT '0' NOT NULL,
    CONSTRAINT pk_parity_days PRIMARY KEY (slot, day)
);
CREATE TABLE trader_adjustments (
    id INTEGER NOT NULL,
    slot TEXT NOT NULL,
    at TEXT NOT NULL,
    ticker TEXT NOT NULL,
    time BIGINT NOT NULL,
    price DOUBLE NOT NULL,
    volume DOUBLE NOT NULL,
    CONSTRAINT pk_trader_adjustments PRIMARY KEY (id)
);
CREATE INDEX ix_trader_adjustments_slot ON trader_adjustments (slot);
CREATE TRIGGER trader_adjustments_no_update BEFORE UPDATE ON trader_adjustments BEGIN SELECT RAISE(ABORT, 'rows of trader_adjustments are append-only'); END;
CREATE TRIGGER trader_adjustments_no_delete BEFORE DELETE ON trader_adjustments BEGIN SELECT RAISE(ABORT, 'rows of trader_adjustments are append-only'); END;
