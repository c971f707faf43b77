//! Workflow files that run `taut gate` for each change.

/// The workflow file for GitHub Actions.
pub const GITHUB: &str = r#"# Compares the time of a program before and after each pull request. Replace the lines marked with CHANGE.
name: gate
on: pull_request
permissions:
  contents: read
jobs:
  gate:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@v4
        with:
          path: head
      - uses: actions/checkout@v4
        with:
          path: base
          ref: ${{ github.event.pull_request.base.sha }}
      - name: Install taut
        run: sudo apt-get install -y ./taut.deb  # CHANGE: the package of taut
      - name: Build both versions
        run: |
          make -C base  # CHANGE
          make -C head  # CHANGE
      - name: Compare
        run: |
          code=0
          taut gate --base base/program --head head/program --worse 3% --seconds 900 --out gate || code=$?  # CHANGE
          [ ! -f gate/summary.md ] || cat gate/summary.md >> "$GITHUB_STEP_SUMMARY"
          # 4: the runner was too noisy to tell. Remove this line to let such changes fail.
          [ "$code" != 4 ] || { echo "::warning::taut gate cannot tell"; code=0; }
          exit "$code"
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: gate
          path: gate
"#;

/// The job definition for GitLab CI.
pub const GITLAB: &str = r#"# Compares the time of a program before and after each merge request. Replace the lines marked with CHANGE.
gate:
  rules:
    - if: $CI_PIPELINE_SOURCE == "merge_request_event"
  timeout: 30 minutes
  variables:
    GIT_DEPTH: 0
  script:
    - apt-get install -y ./taut.deb  # CHANGE: the package of taut
    - git worktree add base "$CI_MERGE_REQUEST_DIFF_BASE_SHA"
    - make -C base  # CHANGE
    - make  # CHANGE
    - taut gate --base base/program --head ./program --worse 3% --seconds 900 --out gate  # CHANGE
  # 4: the runner was too noisy to tell. Remove these lines to let such changes fail.
  allow_failure:
    exit_codes: 4
  artifacts:
    when: always
    paths: [gate]
    reports:
      junit: gate/junit.xml
"#;
