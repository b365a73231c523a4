-- What the server of Shardline 0.x stored with schema 1: sequence numbers without the digit `shard & 15`.
BEGIN TRANSACTION;
CREATE TABLE batch (
    stream INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    first INTEGER NOT NULL, -- the number in the shard of the first record
    arrived REAL NOT NULL,  -- when, all of them
    encryption TEXT,
    body BLOB NOT NULL,     -- MessagePack: [data, partition key or nil] of each
    PRIMARY KEY (stream, shard, first)
);
INSERT INTO "batch" VALUES(1,0,1,1700000001.25,NULL,X'9192C40161A16B');
INSERT INTO "batch" VALUES(1,1,1,1700000001.25,NULL,X'9192C40162A16B');
INSERT INTO "batch" VALUES(1,1,2,1700000002.75,NULL,X'9192C40163A16B');
INSERT INTO "batch" VALUES(1,2,1,1700000003.25,NULL,X'9192C40164A16B');
INSERT INTO "batch" VALUES(1,3,1,1700000003.75,NULL,X'9192C40165A16B');
INSERT INTO "batch" VALUES(1,5,1,1700000003.85,NULL,X'9192C40166A16B');
CREATE TABLE setting (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO "setting" VALUES('owner',X'3030303030303030303030302075732D656173742D31');
INSERT INTO "setting" VALUES('secret',X'F5B165224A58B791DF6AF1D8303E61CD');
CREATE TABLE stream (id INTEGER PRIMARY KEY AUTOINCREMENT, description BLOB NOT NULL);
INSERT INTO "stream" VALUES(1,CAST('{"name":"s","created_at":1700000000.25,"status":"ACTIVE","mode":"PROVISIONED","retention_hours":24,"max_record_kib":1024,"record_distribution":null,"encryption_type":"NONE","key_id":null,"tags":{"team":"a"},"shard_level_metrics":[],"warm_mibps":null,"next_index":6,"count_updates":[],"pending":null,"shards":[{"index":0,"start":"0","end":"170141183460469231731687303715884105727","created_at":1700000000.25,"closed_at":null,"began":1700000000,"parent_id":null,"adjacent_parent_id":null,"first":1},{"index":1,"start":"170141183460469231731687303715884105728","end":"340282366920938463463374607431768211455","created_at":1700000000.25,"closed_at":1700000003.25,"began":1700000000,"parent_id":null,"adjacent_parent_id":null,"first":1},{"index":2,"start":"170141183460469231731687303715884105728","end":"255211775190703847597530955573826158591","created_at":1700000003.25,"closed_at":null,"began":1700000003,"parent_id":"shardId-000000000001","adjacent_parent_id":null,"first":1},{"index":3,"start":"255211775190703847597530955573826158592","end":"340282366920938463463374607431768211455","created_at":1700000003.25,"closed_at":1700000003.75,"began":1700000003,"parent_id":"shardId-000000000001","adjacent_parent_id":null,"first":1},{"index":4,"start":"255211775190703847597530955573826158592","end":"297747071055821155530452781502797185023","created_at":1700000003.75,"closed_at":null,"began":1700000004,"parent_id":"shardId-000000000003","adjacent_parent_id":null,"first":1},{"index":5,"start":"297747071055821155530452781502797185024","end":"340282366920938463463374607431768211455","created_at":1700000003.75,"closed_at":null,"began":1700000004,"parent_id":"shardId-000000000003","adjacent_parent_id":null,"first":1}],"consumers":[{"name":"c","arn":"arn:aws:kinesis:us-east-1:000000000000:stream/s/consumer/c:1700000004","created_at":1700000004.25,"status":"ACTIVE","ready_at":1700000004.25,"tags":{"x":"y"}}]}' AS BLOB));
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('stream',1);
COMMIT;
