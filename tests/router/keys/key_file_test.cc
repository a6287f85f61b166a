#include "router/keys/key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace winnow {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ApiKey Named(const std::string& name) {
  ApiKey key;
  key.name = name;
  return key;
}

// "Bearer KEY", as clients send it.
std::string Credentials(ApiKey& key) {
  return "Bearer " + IssueSecret(key);
}

TEST(ApiKey, IsMatchedByItsOwnTextAlone) {
  ApiKey key = Named("alice"), other = Named("bob");
  const std::string credentials = Credentials(key), others = Credentials(other);
  const auto presented = ParseCredentials(credentials);
  ASSERT_TRUE(presented.has_value());
  EXPECT_EQ(presented->id, key.id);
  EXPECT_TRUE(Matches(key, *presented));
  EXPECT_FALSE(Matches(other, *presented));
  std::string changed = credentials;
  changed.back() = changed.back() == '0' ? '1' : '0';
  EXPECT_FALSE(Matches(key, *ParseCredentials(changed)));
  changed.pop_back();
  EXPECT_FALSE(Matches(key, *ParseCredentials(changed)));
  EXPECT_TRUE(Matches(key, *ParseCredentials("bearer  " + credentials.substr(7) + " "))) << "schemes have no case";
  ApiKey again = key;
  again.salt = other.salt;
  EXPECT_FALSE(Matches(again, *presented)) << "the salt is part of the digest";
}

TEST(ApiKey, OtherCredentialsAreNone) {
  for (const char* text : {"", "Bearer", "Bearer ", "Bearer sk-123", "Basic wk-1-2", "wk-1-2", "Bearer wk-12"}) {
    EXPECT_FALSE(ParseCredentials(text).has_value()) << text;
  }
}

TEST(KeyFile, GivesBackWhatWasWrittenAndNoSecret) {
  KeyFile file;
  ApiKey alice = Named("alice");
  alice.tenant = "team";
  alice.weight = 2.5;
  alice.limits = {.requests_per_minute = 60,
                  .tokens_per_minute = 5000,
                  .max_concurrent = 4,
                  .max_priority = -3,
                  .max_prompt_tokens = 100,
                  .max_answer_tokens = 50,
                  .models = {"demo", "large"}};
  const std::string text = IssueSecret(alice);
  file.keys = {alice, Named("bob: \"x\"")};
  IssueSecret(file.keys[1]);
  const std::string path = testing::TempDir() + "/api-keys.yaml";
  ASSERT_TRUE(file.Save(path).ok());
  const auto loaded = KeyFile::Load(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(loaded->keys.size(), 2u);
  EXPECT_EQ(loaded->Format(), file.Format());
  EXPECT_EQ(loaded->keys[1].name, "bob: \"x\"");
  EXPECT_EQ(loaded->keys[0].limits.models, alice.limits.models);
  EXPECT_EQ(loaded->keys[0].limits.max_priority, -3);
  const std::string credentials = "Bearer " + text;
  EXPECT_TRUE(Matches(loaded->keys[0], *ParseCredentials(credentials)));
  EXPECT_THAT(file.Format(), Not(HasSubstr(text.substr(text.rfind('-') + 1))));
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u) << "for its owner alone";
}

TEST(KeyFile, ErrorsNameLineAndField) {
  ApiKey key = Named("alice");
  IssueSecret(key);
  const std::string id = "id: " + key.id, salt = "salt: " + key.salt, sha256 = "sha256: " + key.sha256;
  const std::string good = "name: alice, " + id + ", " + salt + ", " + sha256;
  const auto error = [](const std::string& yaml) { return std::string(KeyFile::Parse(yaml).status().message()); };
  EXPECT_EQ(error("keys:\n  - {" + good + "}\n"), "");
  EXPECT_EQ(error(""), "");
  EXPECT_EQ(error("keys:\n"), "");
  EXPECT_THAT(error("keys:\n  - {" + good + ", requests_per_minut: 3}\n"),
              HasSubstr("line 2: unknown field \"requests_per_minut\"; did you mean \"requests-per-minute\"?"));
  EXPECT_THAT(error("keys:\n  - {" + good + ", max_priority: 101}\n"), HasSubstr("line 2: max_priority: "));
  EXPECT_THAT(error("keys:\n  - {" + good + "}\n  - {" + good + "}\n"), HasSubstr("line 3: there are two keys named"));
  EXPECT_THAT(error("keys:\n  - {" + good + "}\n  - {name: bob, " + id + ", " + salt + ", " + sha256 + "}\n"),
              HasSubstr("line 3: there are two keys with the id"));
  EXPECT_THAT(error("keys:\n  - {" + id + ", " + salt + ", " + sha256 + "}\n"), HasSubstr("a key needs a name"));
  EXPECT_THAT(error("keys:\n  - {name: alice, " + id + ", " + salt + ", sha256: secret}\n"),
              HasSubstr("sha256 is not"));
  EXPECT_THAT(error("kees: []\n"), HasSubstr("unknown field \"kees\""));
  EXPECT_THAT(error("keys: [\n"), HasSubstr("not YAML"));
  EXPECT_THAT(error("keys:\n  - {" + good + ", tenant: t, weight: 1}\n  - {name: bob, id: ab, " + salt + ", " + sha256 +
                    ", tenant: t, weight: 2}\n"),
              HasSubstr("line 3: key bob: other keys of the tenant t have another weight"));
}

TEST(KeyFile, OneThatIsNotThereIsSaid) {
  EXPECT_TRUE(absl::IsNotFound(KeyFile::Load("/nonexistent/keys").status()));
}

}  // namespace
}  // namespace winnow
